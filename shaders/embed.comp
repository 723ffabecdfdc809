#version 460
#extension GL_GOOGLE_include_directive : require
#include "block.glsl"
#include "step.glsl"

// out = scale * the row of a matrix that stands for a step's token, by rows of floats. Eight neighbouring lanes share a
// block, four consecutive columns each. Groups: (1, rows).

layout(local_size_x = 256) in;

layout(push_constant) uniform Push {
    Units quants;
    Units high;
    Units scales;
    Step step_;
    Words sampled;
    MutableFloatQuads out_;
    uint blocks;
    uint out_stride;
    float scale;
} push;

// Columns 4 * quad to 4 * quad + 3 of a block.
vec4 columns_of(Block block, uint quad) {
#ifdef FLOAT_WEIGHTS
    vec4 columns = block.quad[0];
    [[unroll]] for (uint i = 1; i < 8; i++) {
        columns = quad == i ? block.quad[i] : columns;
    }
    return columns;
#else
    int bytes = int(quad < 4 ? block.low[quad % 4] : block.high[quad % 4]);
    ivec4 quants = ivec4(bytes << 24, bytes << 16, bytes << 8, bytes) >> 24;
#ifdef SCALED_BY_HALVES
    uint half_ = quad / 4;
#else
    uint half_ = 0;
#endif
    precise vec4 columns = block.scale[half_] * vec4(quants - OFFSET);
#ifdef HAS_MINIMUM
    columns += block.minimum[half_];
#endif
    return columns;
#endif
}

void main() {
    uint row = gl_WorkGroupID.y;
    int token = push.step_.row[row].x;
    if (token < 0) {
        token = int(push.sampled.value[-1 - token]);
    }
    for (uint quad = gl_LocalInvocationID.x; quad < push.blocks * 8; quad += gl_WorkGroupSize.x) {
        Block block = load_block(
            Planes(push.quants, push.high, push.scales), block_index(uint(token), quad / 8, push.blocks)
        );
        precise vec4 columns = columns_of(block, quad % 8) * push.scale;
        push.out_.value[row * (push.out_stride / 4) + quad] = columns;
    }
}
