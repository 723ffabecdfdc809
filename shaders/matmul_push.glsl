// What matvec and matmul are told: out = x * transposed(weights) + bias + residual, for rows of `blocks` blocks and a
// matrix of `outputs` rows. Quantised layouts read quantised activations (x_quants, x_scales; their rows are dense,
// TERMS of them to a row of x), float layouts floats at x_quants, x_stride apart. rows: how many x may have. Bias and
// residual may be absent.

#ifndef MATMUL_PUSH_GLSL
#define MATMUL_PUSH_GLSL

#include "product.glsl"

layout(push_constant) uniform Push {
    Units quants;
    Units high;
    Units scales;
    Units x_quants;
    WordPairs x_scales;
    Floats bias;
    Floats residual;
    MutableFloats out_;
    uint blocks;
    uint outputs;
    uint x_stride;
    uint out_stride;
    uint residual_stride;
    uint rows;
} push;

Weights weights_of(uint output_, uint block) {
    Planes planes = Planes(push.quants, push.high, push.scales);
    return load_weights(planes, block_index(output_, block, push.blocks));
}

// Write a sum, if its place exists.
void store(uint row, uint output_, float sum) {
    if (row >= push.rows || output_ >= push.outputs) {
        return;
    }
    precise float value = sum;
    if (!is_absent(push.bias)) {
        value += push.bias.value[output_];
    }
    if (!is_absent(push.residual)) {
        value += push.residual.value[row * push.residual_stride + output_];
    }
    push.out_.value[row * push.out_stride + output_] = value;
}

#endif
