#version 460
#extension GL_GOOGLE_include_directive : require
#include "buffers.glsl"

// out = a + b, by rows of `width` floats; each buffer has its own stride. Groups: (ceil(width / 256), rows).

layout(local_size_x = 256) in;

layout(push_constant) uniform Push {
    Floats a;
    Floats b;
    MutableFloats out_;
    uint width;
    uint a_stride;
    uint b_stride;
    uint out_stride;
} push;

void main() {
    uint column = gl_GlobalInvocationID.x;
    uint row = gl_WorkGroupID.y;
    if (column < push.width) {
        push.out_.value[row * push.out_stride + column] =
            push.a.value[row * push.a_stride + column] + push.b.value[row * push.b_stride + column];
    }
}
