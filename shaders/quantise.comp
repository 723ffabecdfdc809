#version 460
#extension GL_GOOGLE_include_directive : require
#include "buffers.glsl"

// Rows of `width` floats become TERMS rows each of blocks of 32 bytes and their scales.
// Groups: (ceil(width / 256), rows).

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint TERMS = 1;

#include "rows.glsl"

layout(push_constant) uniform Push {
    FloatQuads x;
    MutableWords quants;
    MutableWordPairs scales;
    uint width;
    uint x_stride;
} push;

void main() {
    uint row = gl_WorkGroupID.y;
    uint quad = gl_GlobalInvocationID.x;
    vec4 x = quad_of(push.x, row * push.x_stride / 4, quad, push.width);
    write_terms(x, row, TERMS, quad, push.width, push.quants, push.scales);
}
