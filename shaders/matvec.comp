#version 460
#extension GL_GOOGLE_include_directive : require
#include "matmul_push.glsl"

// Few rows: a group computes 32 outputs of ROWS rows (at most 8), each of its eight teams of 32 lanes one segment.
// AHEAD blocks of weights are loaded before the first of them is used. Groups: (ceil(outputs / 32), ceil(rows / ROWS)).

layout(local_size_x = 32, local_size_y = 8) in;
layout(constant_id = 0) const uint ROWS = 1;
layout(constant_id = 1) const uint AHEAD = 4;
layout(constant_id = 2) const uint TERMS = 1;

#include "activations.glsl"

shared float segment_sum[SEGMENTS * ROWS * LANES];

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint segment = gl_LocalInvocationID.y;
    uint output_ = gl_WorkGroupID.x * LANES + lane;
    uint first_row = gl_WorkGroupID.y * ROWS;
    float sum[ROWS];
    [[unroll]] for (uint row = 0; row < ROWS; row++) {
        sum[row] = 0.0;
    }
    uint end = (segment + 1) * push.blocks / SEGMENTS;
    for (uint first = segment * push.blocks / SEGMENTS; first < end; first += AHEAD) {
        Weights weights[AHEAD];
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            weights[i] = weights_of(output_, min(first + i, end - 1));
        }
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            if (first + i < end) {
                fetch_activations(first_row, first + i);
                [[unroll]] for (uint line = 0; line < LINES; line++) {
                    uint row = line / TERMS;
                    sum[row] = add_block(sum[row], weights[i], activations_of(line));
                }
            }
        }
    }
    [[unroll]] for (uint row = 0; row < ROWS; row++) {
        segment_sum[(segment * ROWS + row) * LANES + lane] = sum[row];
    }
    barrier();
    uint row = segment;
    if (row < ROWS) {
        precise float total = 0.0;
        [[unroll]] for (uint i = 0; i < SEGMENTS; i++) {
            total += segment_sum[(i * ROWS + row) * LANES + lane];
        }
        store(first_row + row, output_, total);
    }
}
