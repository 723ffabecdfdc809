#version 460
#extension GL_GOOGLE_include_directive : require
#include "buffers.glsl"

// Row i of `out` is row selected[i] of `src`, `width` floats. Groups: (ceil(width / 256), selected rows).

layout(local_size_x = 64) in;

#include "rows.glsl"

layout(push_constant) uniform Push {
    FloatQuads src;
    Words selection;
    MutableFloatQuads out_;
    uint width;
    uint src_stride;
    uint out_stride;
} push;

void main() {
    uint row = gl_WorkGroupID.y;
    uint quad = gl_GlobalInvocationID.x;
    if (quad * 4 < push.width) {
        uint src = push.selection.value[row] * push.src_stride / 4;
        push.out_.value[row * push.out_stride / 4 + quad] = quad_of(push.src, src, quad, push.width);
    }
}
