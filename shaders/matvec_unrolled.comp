#version 460
#extension GL_GOOGLE_include_directive : require
#include "matmul_push.glsl"

// Rows of BLOCKS blocks, on a device that loads several times faster outside of loops (FEATURE_SHUFFLE): a group
// computes 32 * WIDTH outputs of ROWS rows, each of its TEAMS teams of 32 lanes as many segments as the others. TEAMS
// divides SEGMENTS and BLOCKS, so that all teams' segments end after the same blocks of theirs.
// Groups: (ceil(outputs / (32 * WIDTH)), ceil(rows / ROWS)).

layout(local_size_x = 32, local_size_y_id = 0) in;
layout(constant_id = 1) const uint WIDTH = 2;
layout(constant_id = 2) const uint ROWS = 1;
layout(constant_id = 3) const uint SUBGROUP = 8;
layout(constant_id = 4) const uint BLOCKS = 8;
layout(constant_id = 5) const uint TERMS = 1;

#include "tile.glsl"

shared float segment_sum[SEGMENTS * CELLS * LANES];

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint team = gl_LocalInvocationID.y;
    first_output = gl_WorkGroupID.x * (LANES * WIDTH) + lane;
    first_row = gl_WorkGroupID.y * ROWS;
    uint segment = team * (SEGMENTS / gl_WorkGroupSize.y);
    uint place = segment * CELLS * LANES + lane;
    if (BLOCKS < SEGMENTS) {  // some segments are empty
        [[unroll]] for (uint i = 0; i < SEGMENTS / gl_WorkGroupSize.y * CELLS; i++) {
            segment_sum[place + i * LANES] = 0.0;
        }
    }
    clear_sums();
    uint progress = FIRST_PROGRESS;
    [[unroll]] for (uint i = 0; i < BLOCKS / gl_WorkGroupSize.y; i++) {
        add_to_sums(team * (BLOCKS / gl_WorkGroupSize.y) + i);
        if (ends_segment(progress, BLOCKS)) {
            [[unroll]] for (uint cell = 0; cell < CELLS; cell++) {
                segment_sum[place + cell * LANES] = sum[cell];
            }
            place += CELLS * LANES;
            clear_sums();
        }
    }
    barrier();
    for (uint cell = team; cell < CELLS; cell += gl_WorkGroupSize.y) {
        precise float total = 0.0;
        [[unroll]] for (uint i = 0; i < SEGMENTS; i++) {
            total += segment_sum[(i * CELLS + cell) * LANES + lane];
        }
        store_cell(cell, total);
    }
}
