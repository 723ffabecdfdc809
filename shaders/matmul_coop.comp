#version 460
#extension GL_GOOGLE_include_directive : require
#pragma use_vulkan_memory_model
#include "matmul_coop.glsl"

// Many rows, on cooperative matrices of M rows, N outputs and K columns: halves multiplied, sums in floats. They add in
// an order of their own, so this form does not give the bits of the others.
// A group has a tile of TILE_OUTPUTS outputs of TILE_ROWS rows. Each of its subgroups sums a part of it, TEAM_OUTPUTS of
// TEAM_ROWS, from halves in shared memory; there are as many subgroups as parts. While one step of COLUMNS columns is
// multiplied, the next one is loaded. Groups: (ceil(outputs / TILE_OUTPUTS), ceil(rows / TILE_ROWS)).

layout(constant_id = 4) const uint TEAM_ROWS = 32;
layout(constant_id = 5) const uint TEAM_OUTPUTS = 32;
layout(constant_id = 6) const uint M = 16;
layout(constant_id = 7) const uint N = 16;
layout(constant_id = 8) const uint K = 16;

const uint DOWN = TEAM_ROWS / M;
const uint ACROSS = TEAM_OUTPUTS / N;
// Units of a matrix of sums in shared memory: of a row, one of them left free.
const uint SUM_STRIDE = N / 4 + 1;

coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sum[DOWN * ACROSS];
uint team_row;
uint team_output;

void multiply(uint copy) {
    [[unroll]] for (uint column = 0; column < COLUMNS; column += K) {
        coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> x[DOWN];
        [[unroll]] for (uint down = 0; down < DOWN; down++) {
            uint start = tile_unit(copy, TILE_OUTPUTS + team_row + down * M) + column / HALVES;
            coopMatLoad(x[down], tile, start, TILE_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint across = 0; across < ACROSS; across++) {
            coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> weights;
            uint start = tile_unit(copy, team_output + across * N) + column / HALVES;
            coopMatLoad(weights, tile, start, TILE_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint down = 0; down < DOWN; down++) {
                uint cell = down * ACROSS + across;
                sum[cell] = coopMatMulAdd(x[down], weights, sum[cell]);
            }
        }
    }
}

// Write the sums, by way of shared memory: which of a matrix's values a lane has is not known.
void store_sums() {
    uint start = gl_SubgroupID * M * SUM_STRIDE;
    [[unroll]] for (uint cell = 0; cell < DOWN * ACROSS; cell++) {
        uint row = team_row + cell / ACROSS * M;
        uint output_ = gl_WorkGroupID.x * TILE_OUTPUTS + team_output + cell % ACROSS * N;
        coopMatStore(sum[cell], tile, start, SUM_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        for (uint i = gl_SubgroupInvocationID; i < M * N; i += gl_SubgroupSize) {
            uint down = i / N;
            float value = uintBitsToFloat(tile[start + down * SUM_STRIDE + i % N / 4][i % 4]);
            store(first_row + row + down, output_ + i % N, value * largest_of(row + down) / LARGEST);
        }
        subgroupBarrier();
    }
}

void main() {
    first_row = gl_WorkGroupID.y * TILE_ROWS;
    uint teams_across = TILE_OUTPUTS / TEAM_OUTPUTS;
    team_row = gl_SubgroupID / teams_across * TEAM_ROWS;
    team_output = gl_SubgroupID % teams_across * TEAM_OUTPUTS;
    [[unroll]] for (uint cell = 0; cell < DOWN * ACROSS; cell++) {
        sum[cell] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    }
    find_largest();
    fetch(0);
    keep(0);
    barrier();
    for (uint block = 0; block < push.blocks; block++) {
        bool more = block + 1 < push.blocks;
        if (more) {
            fetch(block + 1);
        }
        multiply(block % 2);
        if (more) {
            keep((block + 1) % 2);
        }
        barrier();
    }
    store_sums();
}
