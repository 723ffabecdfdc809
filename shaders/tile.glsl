// A lane's tile, for the entry's constants WIDTH and ROWS: WIDTH outputs, 32 apart, of ROWS rows, summed in registers.
// Cell row * WIDTH + i is output first_output + 32 * i of row first_row + row; what is past the last is computed from
// what lies at the end, and not stored.

#ifndef TILE_GLSL
#define TILE_GLSL

#include "activations.glsl"

const uint CELLS = ROWS * WIDTH;

uint first_output;
uint first_row;
float sum[CELLS];  // of the segment that is under way

void clear_sums() {
    [[unroll]] for (uint cell = 0; cell < CELLS; cell++) {
        sum[cell] = 0.0;
    }
}

void add_to_sums(uint block) {
    uint last_output = (push.outputs - 1) / LANES * LANES + gl_LocalInvocationID.x;
    Weights weights[WIDTH];
    [[unroll]] for (uint i = 0; i < WIDTH; i++) {
        weights[i] = weights_of(min(first_output + i * LANES, last_output), block);
    }
    fetch_activations(first_row, block);
    [[unroll]] for (uint line = 0; line < LINES; line++) {
        Activations x = activations_of(line);
        [[unroll]] for (uint i = 0; i < WIDTH; i++) {
            uint cell = line / TERMS * WIDTH + i;
            sum[cell] = add_block(sum[cell], weights[i], x);
        }
    }
}

void store_cell(uint cell, float total) {
    store(first_row + cell / WIDTH, first_output + cell % WIDTH * LANES, total);
}

#endif
