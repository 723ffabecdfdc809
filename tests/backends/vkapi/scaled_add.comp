#version 460
#extension GL_EXT_buffer_reference : require

// out = SCALE * a + b + BIAS, by words. Groups: ceil(count / 64).

layout(local_size_x = 64) in;
layout(constant_id = 3) const uint SCALE = 1;
layout(constant_id = 8) const float BIAS = 0.0;

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Words { uint value[]; };

layout(push_constant) uniform Push {
    Words a;
    Words b;
    Words out_;
    uint count;
} push;

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < push.count) {
        push.out_.value[i] = SCALE * push.a.value[i] + push.b.value[i] + uint(BIAS);
    }
}
