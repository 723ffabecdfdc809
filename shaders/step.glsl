// What changes with every step: its rows, and how many of them there are.

#ifndef STEP_GLSL
#define STEP_GLSL

#extension GL_EXT_buffer_reference : require

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Step {
    uint rows;      // rows of the step
    uint selected;  // rows of which something is wanted
    uint reserved0;
    uint reserved1;
    ivec4 row[];    // token, position, region, unused; a token below 0 is sampled[-1 - token]
};

#endif
