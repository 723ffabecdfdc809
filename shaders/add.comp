#version 460
#extension GL_GOOGLE_include_directive : require
#include "buffers.glsl"

// out = a + b, by rows of `width` floats, four to a lane. Rows are padded to a multiple of 32 floats in memory,
// strides are multiples of 4; what lies past the width may be anything, in out as well.
// Groups: (ceil(width / 256), rows).

layout(local_size_x = 64) in;

layout(push_constant) uniform Push {
    FloatQuads a;
    FloatQuads b;
    MutableFloatQuads out_;
    uint width;
    uint a_stride;
    uint b_stride;
    uint out_stride;
} push;

void main() {
    uint quad = gl_GlobalInvocationID.x;
    uint row = gl_WorkGroupID.y;
    if (quad * 4 < push.width) {
        push.out_.value[row * push.out_stride / 4 + quad] =
            push.a.value[row * push.a_stride / 4 + quad] + push.b.value[row * push.b_stride / 4 + quad];
    }
}
