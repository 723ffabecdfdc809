#version 460
#extension GL_GOOGLE_include_directive : require
#include "matmul_push.glsl"

// Many rows: a group of TEAMS times 32 lanes has a tile of 32 * WIDTH outputs of ROWS * TEAMS rows; what its teams read
// of the weights is the same and stays in the cache nearest to them.
// Groups: (ceil(outputs / tile's), ceil(rows / tile's)).

layout(local_size_x = 32, local_size_y_id = 0) in;
layout(constant_id = 1) const uint WIDTH = 4;
layout(constant_id = 2) const uint ROWS = 4;
layout(constant_id = 3) const uint SUBGROUP = 8;
layout(constant_id = 4) const uint TERMS = 1;

#include "tile.glsl"

void main() {
    first_output = gl_WorkGroupID.x * (LANES * WIDTH) + gl_LocalInvocationID.x;
    first_row = (gl_WorkGroupID.y * gl_WorkGroupSize.y + gl_LocalInvocationID.y) * ROWS;
    precise float total[CELLS];
    [[unroll]] for (uint cell = 0; cell < CELLS; cell++) {
        total[cell] = 0.0;
    }
    clear_sums();
    uint progress = FIRST_PROGRESS;
    for (uint block = 0; block < push.blocks; block++) {
        add_to_sums(block);
        if (ends_segment(progress, push.blocks)) {
            [[unroll]] for (uint cell = 0; cell < CELLS; cell++) {
                total[cell] += sum[cell];
            }
            clear_sums();
        }
    }
    [[unroll]] for (uint cell = 0; cell < CELLS; cell++) {
        store_cell(cell, total[cell]);
    }
}
