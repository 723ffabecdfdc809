#version 460
#extension GL_GOOGLE_include_directive : require
#include "buffers.glsl"
#include "step.glsl"

// What happens to heads between their projections and attention: queries and keys are normed (RMS), turned by their
// position (rope) and brought into the codec's basis; keys and values are encoded and stored at the row's region and
// position. Queries change in place. Groups: (HEADS + 2 * KV_HEADS, rows); a group has one head of one row.
//
// HEAD_SIZE: at most 1024, what the codec can keep. LANES: a power of two of at least 8; it changes no bit.
// ROPE_PAIRS: 0 without rope, else at most HEAD_SIZE / 2; neighbours make a pair where ROPE_INTERLEAVED is set.
// q_norm, k_norm: weights of one head, or absent. shape: by K/V head, what keys are multiplied by before they are
// rotated, what queries are, and HEAD_SIZE rows of feedback (codec_tq4.glsl), each HEAD_SIZE floats; or absent.

layout(constant_id = 0) const uint HEAD_SIZE = 64;
layout(constant_id = 1) const uint LANES = 32;
layout(constant_id = 2) const uint HEADS = 1;
layout(constant_id = 3) const uint KV_HEADS = 1;
layout(constant_id = 4) const uint ROPE_PAIRS = 0;
layout(constant_id = 5) const uint ROPE_INTERLEAVED = 0;
layout(local_size_x_id = 1) in;

// Lanes that add squares up, whatever LANES is: the order of the sum is the same for all.
const uint NORM_LANES = 8;

shared vec4 heads[HEAD_SIZE / 4];
shared float squares[NORM_LANES];

#define CODEC_ENCODES
#include "codec.glsl"
#include "rope.glsl"

layout(push_constant) uniform Push {
    MutableFloatQuads q;
    FloatQuads k;
    FloatQuads v;
    FloatQuads q_norm;
    FloatQuads k_norm;
    FloatPairs rope;
    FloatQuads shape;
    MutableUnits k_quants;
    MutableHalves k_scales;
    MutableUnits v_quants;
    MutableHalves v_scales;
    Step step;
    uint q_stride;
    uint k_stride;
    uint v_stride;
    uint positions;  // of a region
    float eps;
} push;

void load(FloatQuads rows, uint start) {
    for (uint i = gl_LocalInvocationID.x; i < HEAD_QUADS; i += LANES) {
        heads[i] = rows.value[start + i];
    }
}

void norm(FloatQuads weight) {
    uint lane = gl_LocalInvocationID.x;
    barrier();
    if (lane < NORM_LANES) {
        precise float sum = 0.0;
        for (uint i = lane; i < HEAD_QUADS; i += NORM_LANES) {
            precise vec4 square = heads[i] * heads[i];
            sum += (square.x + square.y) + (square.z + square.w);
        }
        squares[lane] = sum;
    }
    for (uint half_lanes = NORM_LANES / 2; half_lanes > 0; half_lanes /= 2) {
        barrier();
        if (lane < half_lanes) {
            precise float pair = squares[lane] + squares[lane + half_lanes];
            squares[lane] = pair;
        }
    }
    barrier();
    float scale = 1.0 / sqrt(squares[0] / float(HEAD_SIZE) + push.eps);
    for (uint i = lane; i < HEAD_QUADS; i += LANES) {
        heads[i] = heads[i] * scale * weight.value[i];
    }
}

void rope(uint position) {
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < ROPE_PAIRS; i += LANES) {
        uint a = ROPE_INTERLEAVED != 0 ? 2 * i : i;
        uint b = ROPE_INTERLEAVED != 0 ? a + 1 : a + ROPE_PAIRS;
        vec2 pair = turned(vec2(heads[a / 4][a % 4], heads[b / 4][b % 4]),
                           turn_of(push.rope, ROPE_PAIRS, position, i));
        heads[a / 4][a % 4] = pair.x;
        heads[b / 4][b % 4] = pair.y;
    }
    barrier();
}

#ifdef CODEC_ROTATED
void rotate(FloatQuads scales, uint start) {
    bool own = is_absent(scales);
    for (uint i = gl_LocalInvocationID.x; i < HEAD_QUADS; i += LANES) {
        vec4 x = heads[i] * signs_of(i);
        heads[i] = own ? x : x * scales.value[start + i];
    }
    hadamard(HEAD_QUADS);
}
#endif

void store_key(uint head, uint position) {
    for (uint unit = gl_LocalInvocationID.x; unit < HEAD_UNITS; unit += LANES) {
        uint scale = 0;
#ifdef CODEC_SCALED
        uint block = unit * CODEC_VALUES / 32;
        scale = block_scale(block * 8);
        if (unit * CODEC_VALUES % 32 == 0) {
            push.k_scales.value[key_scale(head, push.positions, position, block)] = uint16_t(scale);
        }
#endif
        push.k_quants.value[key_unit(head, push.positions, position, unit)] = encode_unit(unit * UNIT_QUADS, scale);
    }
}

void store_value(uint head, uint position) {
    for (uint unit = gl_LocalInvocationID.x; unit < HEAD_UNITS; unit += LANES) {
        uint scale = 0;
#ifdef CODEC_SCALED
        uint block = unit * CODEC_VALUES / 32;
        scale = block_scale(block * 8);
        if (unit * CODEC_VALUES % 32 == 0) {
            push.v_scales.value[value_scale(head, push.positions, position) + block] = uint16_t(scale);
        }
#endif
        push.v_quants.value[value_unit(head, push.positions, position) + unit] = encode_unit(unit * UNIT_QUADS, scale);
    }
}

void main() {
    const uint group = HEADS / KV_HEADS;
    uint lane = gl_LocalInvocationID.x;
    uint index = gl_WorkGroupID.x;
    uint row = gl_WorkGroupID.y;
    uint position = uint(push.step.row[row].y);
    uint region = uint(push.step.row[row].z);
    bool is_query = index < HEADS;
    bool is_value = index >= HEADS + KV_HEADS;
    uint kv_head = is_query ? index / group : (index - HEADS) % KV_HEADS;

    uint start = 0;
    if (is_query) {
        start = row * (push.q_stride / 4) + index * HEAD_QUADS;
        load(FloatQuads(push.q), start);
    } else if (is_value) {
        load(push.v, row * (push.v_stride / 4) + kv_head * HEAD_QUADS);
    } else {
        load(push.k, row * (push.k_stride / 4) + kv_head * HEAD_QUADS);
    }
    FloatQuads weight = is_query ? push.q_norm : push.k_norm;
    if (!is_value && !is_absent(weight)) {
        norm(weight);
    }
    if (ROPE_PAIRS > 0 && !is_value) {
        rope(position);
    }
#ifdef CODEC_ROTATED
    FloatQuads shape = is_value ? FloatQuads(uvec2(0)) : push.shape;
    uint shape_start = kv_head * (HEAD_SIZE + 2) * HEAD_QUADS;
    rotate(shape, shape_start + (is_query ? HEAD_QUADS : 0));
#else
    barrier();
#endif
#ifdef CODEC_PREPARES
    if (!is_query) {
        prepare(shape, shape_start + 2 * HEAD_QUADS);
    }
#endif
    if (is_query) {
        for (uint i = lane; i < HEAD_QUADS; i += LANES) {
            push.q.value[start + i] = heads[i];
        }
    } else if (is_value) {
        store_value(region * KV_HEADS + kv_head, position);
    } else {
        store_key(region * KV_HEADS + kv_head, position);
    }
}
