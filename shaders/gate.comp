#version 460
#extension GL_GOOGLE_include_directive : require
#include "buffers.glsl"

// out = activation(gate) * up by rows of `width`, as floats, quantised, or both. Groups: (ceil(width / 256), rows).

layout(local_size_x = 64) in;

#include "rows.glsl"

const uint SILU = 0;
const uint GELU = 1;

layout(constant_id = 0) const uint ACTIVATION = SILU;
layout(constant_id = 1) const bool OUT_FLOAT = false;
layout(constant_id = 2) const bool OUT_QUANTISED = true;

layout(push_constant) uniform Push {
    FloatQuads gate;
    FloatQuads up;
    MutableFloatQuads out_;
    MutableWords quants;
    MutableWordPairs scales;
    uint width;
    uint gate_stride;
    uint up_stride;
    uint out_stride;
} push;

// SiLU: x * sigmoid(x). GELU by tanh: (1 + tanh(y)) / 2 = sigmoid(2y), y = sqrt(2 / pi) * (x + 0.044715 x^3).
vec4 activation(vec4 x) {
    precise vec4 y = ACTIVATION == GELU ? 1.5957691216057308 * x * (1.0 + 0.044715 * x * x) : x;
    precise vec4 result = x * (1.0 / (1.0 + exp(-y)));
    return result;
}

void main() {
    uint row = gl_WorkGroupID.y;
    uint quad = gl_GlobalInvocationID.x;
    vec4 gate = quad_of(push.gate, row * push.gate_stride / 4, quad, push.width);
    vec4 up = quad_of(push.up, row * push.up_stride / 4, quad, push.width);
    precise vec4 gated = activation(gate) * up;
    if (OUT_FLOAT && quad * 4 < push.width) {
        push.out_.value[row * push.out_stride / 4 + quad] = gated;
    }
    if (OUT_QUANTISED) {
        write_quantised(gated, row, quad, push.width, push.quants, push.scales);
    }
}
