// A matrix in the device's layout, and a block of it: 32 columns of one row.
//
// Rows stand in groups of 32 (lanes), columns in blocks of 32, both padded with zeros. A block's data lies in up to
// three planes. In each, what a row has of a block stands beside what its group's other rows have of it, in units of 16
// bytes in `quants`, in one smaller piece in `high` and `scales`; so neighbouring rows are neighbours in memory:
//     unit u of block b of row r: ((r / 32 * blocks + b) * units + u) * 32 + r % 32.
//
// layout_NAME.glsl gives, for the layout that is defined,
//     Block load_block(Planes planes, uint index), index = block_index(...),
// and for quantised layouts says by defines how value = scale * (quant - OFFSET) + minimum:
//     SCALED_BY_HALVES   scale.x, minimum.x are of columns 0 to 15, .y of the others; else both are of the block
//     HAS_MINIMUM        else there is none, and the field is not read
//     OFFSET             0 where not defined

#ifndef BLOCK_GLSL
#define BLOCK_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "buffers.glsl"
#include "loads.glsl"

const uint LANES = 32;

struct Planes {
    Units quants;
    Units high;
    Units scales;
};

#if defined(LAYOUT_F32) || defined(LAYOUT_F16) || defined(LAYOUT_BF16)
#define FLOAT_WEIGHTS

struct Block {
    vec4 quad[8];  // columns in order
};
#else

// low: columns 0 to 15 in order, a byte each; high: columns 16 to 31.
struct Block {
    uvec4 low;
    uvec4 high;
    vec2 scale;
    vec2 minimum;
};
#endif

// Index of a block among those of a plane that has one piece of each.
uint block_index(uint row, uint block, uint blocks) {
    return (row / LANES * blocks + block) * LANES + row % LANES;
}

// Index of a block's first unit; the others follow at steps of LANES.
uint first_unit(uint index, uint units) {
    return index / LANES * (units * LANES) + index % LANES;
}

uvec4 nibbles_low(uvec4 unit) {
    return unit & 0x0f0f0f0fu;
}

uvec4 nibbles_high(uvec4 unit) {
    return unit >> 4 & 0x0f0f0f0fu;
}

// Bits 0 to 15 to bit 0 of sixteen bytes.
uvec4 spread_bits(uint bits) {
    uvec4 quads = uvec4(bits, bits >> 4, bits >> 8, bits >> 12) & 0xfu;
    return quads * 0x00204081u & 0x01010101u;
}

// Sixteen pairs of bits to bits 0 and 1 of sixteen bytes.
uvec4 spread_pairs(uint pairs) {
    uvec4 quads = uvec4(pairs, pairs >> 8, pairs >> 16, pairs >> 24) & 0xffu;
    quads = (quads | quads << 12) & 0x000f000fu;
    return (quads | quads << 6) & 0x03030303u;
}

#if defined(LAYOUT_F32)
#include "layout_f32.glsl"
#elif defined(LAYOUT_F16)
#include "layout_f16.glsl"
#elif defined(LAYOUT_BF16)
#include "layout_bf16.glsl"
#elif defined(LAYOUT_Q8)
#include "layout_q8.glsl"
#elif defined(LAYOUT_Q6)
#include "layout_q6.glsl"
#elif defined(LAYOUT_Q5)
#include "layout_q5.glsl"
#elif defined(LAYOUT_Q5S)
#include "layout_q5s.glsl"
#elif defined(LAYOUT_Q4)
#include "layout_q4.glsl"
#elif defined(LAYOUT_Q4S)
#include "layout_q4s.glsl"
#elif defined(LAYOUT_Q3)
#include "layout_q3.glsl"
#elif defined(LAYOUT_Q2)
#include "layout_q2.glsl"
#endif

#ifndef OFFSET
#define OFFSET 0
#endif

#endif
