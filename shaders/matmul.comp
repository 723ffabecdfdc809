#version 460
#extension GL_GOOGLE_include_directive : require
#include "matmul_push.glsl"

// Many rows: each lane computes WIDTH outputs, 32 apart, of ROWS rows, in registers. A group of TEAMS times 32 lanes
// has a tile of 32 * WIDTH outputs of ROWS * TEAMS rows; what its teams read of the weights is the same and stays in
// the cache nearest to them. Groups: (ceil(outputs / tile's), ceil(rows / tile's)).

layout(local_size_x = 32, local_size_y_id = 0) in;
layout(constant_id = 1) const uint WIDTH = 4;
layout(constant_id = 2) const uint ROWS = 4;
layout(constant_id = 3) const uint SUBGROUP = 8;

#include "activations.glsl"

const uint CELLS = ROWS * WIDTH;

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint first_output = gl_WorkGroupID.x * (LANES * WIDTH) + lane;
    uint last_output = (push.outputs - 1) / LANES * LANES + lane;
    uint first_row = (gl_WorkGroupID.y * gl_WorkGroupSize.y + gl_LocalInvocationID.y) * ROWS;
    precise float total[CELLS];
    float sum[CELLS];
    [[unroll]] for (uint cell = 0; cell < CELLS; cell++) {
        total[cell] = 0.0;
        sum[cell] = 0.0;
    }
    uint progress = SEGMENTS - 1;  // of blocks in eighths of a block; a segment ends where it reaches all blocks
    for (uint block = 0; block < push.blocks; block++) {
        Weights weights[WIDTH];
        [[unroll]] for (uint i = 0; i < WIDTH; i++) {
            weights[i] = weights_of(min(first_output + i * LANES, last_output), block);
        }
        fetch_activations(first_row, block);
        [[unroll]] for (uint row = 0; row < ROWS; row++) {
            Activations x = activations_of(row);
            [[unroll]] for (uint i = 0; i < WIDTH; i++) {
                uint cell = row * WIDTH + i;
                sum[cell] = add_block(sum[cell], weights[i], x);
            }
        }
        progress += SEGMENTS;
        if (progress >= push.blocks) {
            progress -= push.blocks;
            [[unroll]] for (uint cell = 0; cell < CELLS; cell++) {
                total[cell] += sum[cell];
                sum[cell] = 0.0;
            }
        }
    }
    [[unroll]] for (uint row = 0; row < ROWS; row++) {
        [[unroll]] for (uint i = 0; i < WIDTH; i++) {
            store(first_row + row, first_output + i * LANES, total[row * WIDTH + i]);
        }
    }
}
