// Blocks of the activations, for the entry's constants ROWS and TERMS. A row comes in TERMS lines, which it is the sum
// of: more than one for quantised layouts only.
//     fetch_activations(first_row, block)   rows from first_row on; past the last there are more of the last line
//     Activations activations_of(line)      line % TERMS of row first_row + line / TERMS, line < LINES
// A line is read by all lanes at once, from the same address. With FEATURE_SHUFFLE that would cost as much as reading
// different addresses; there the lanes of a subgroup read a part each, in 8 bytes, and exchange them. A subgroup has
// SUBGROUP lanes, a constant of the entry.

#ifndef ACTIVATIONS_GLSL
#define ACTIVATIONS_GLSL

#include "matmul_push.glsl"

const uint LINES = ROWS * TERMS;

uint line_of(uint first_row, uint line) {
    return min(first_row * TERMS + line, push.rows * TERMS - 1);
}

#ifdef FEATURE_SHUFFLE
#include "activations_shuffle.glsl"
#else

uint fetched_row;
uint fetched_block;

void fetch_activations(uint first_row, uint block) {
    fetched_row = first_row;
    fetched_block = block;
}

Activations activations_of(uint line) {
    line = line_of(fetched_row, line);
    Activations x;
#ifdef FLOAT_WEIGHTS
    uint first = line * (push.x_stride / 4) + fetched_block * 8;
    [[unroll]] for (uint i = 0; i < 8; i++) {
        x.quad[i] = uintBitsToFloat(push.x_quants.value[first + i]);
    }
#else
    uint index = line * push.blocks + fetched_block;
    uvec4 low = push.x_quants.value[2 * index];
    uvec4 high = push.x_quants.value[2 * index + 1];
    [[unroll]] for (uint i = 0; i < 4; i++) {
        x.quad[i] = quad_of(low[i]);
        x.quad[4 + i] = quad_of(high[i]);
    }
    uvec2 scale = push.x_scales.value[index];
    x.scale = uintBitsToFloat(scale.x);
    x.sum = ivec2(int(scale.y << 16), int(scale.y)) >> 16;
#endif
    return x;
}

#endif
#endif
