#version 460
#extension GL_GOOGLE_include_directive : require
#include "sampling.glsl"

// One look at every logit: each block's best, and each part's share of the probability. Groups: (parts, rows), parts =
// ceil(vocabulary / 4096). The logits stay as they are: what changes them is applied to what was read.
//
// peaks: a key for each block, 64 for each part. masses: one for each part; sums that draw.comp does not need are 0.
// Order of a part's sum: quad i, ids 4 * i to 4 * i + 3, belongs to lane i % 256, which adds in ascending order; then as
// group_sum has it.

layout(local_size_x = 256) in;

#include "group_max.glsl"
#include "group_sum.glsl"

const uint LANE_QUADS = PART_IDS / 4 / 256;

layout(push_constant) uniform Push {
    Units logits;
    Draws draws;
    Changes changes;
    MutableWords peaks;
    MutableMasses masses;
    uint vocabulary;
    uint stride;
} push;

shared uint part_bits[PART_IDS];
shared uint quad_peak[PART_IDS / 4];

uint largest(uvec4 keys[LANE_QUADS]) {
    uvec4 most = keys[0];
    for (uint i = 1; i < LANE_QUADS; i++) {
        most = max(most, keys[i]);
    }
    return max(max(most.x, most.y), max(most.z, most.w));
}

float sum_of(uvec4 bits[LANE_QUADS], float most, float inverse) {
    precise float sum = 0.0;
    for (uint i = 0; i < LANE_QUADS; i++) {
        vec4 weights = weights_of(uintBitsToFloat(bits[i]), most, inverse);
        sum += weights.x;
        sum += weights.y;
        sum += weights.z;
        sum += weights.w;
    }
    return group_sum(sum);
}

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint row = gl_WorkGroupID.y;
    uint part = gl_WorkGroupID.x;
    uint start = part * PART_IDS;
    Draw draw = push.draws.row[row];

    uvec4 bits[LANE_QUADS];
    uvec4 keys[LANE_QUADS];
    for (uint i = 0; i < LANE_QUADS; i++) {
        uint id = start + (i * 256 + lane) * 4;
        bits[i] = uvec4(0);
        if (id < push.vocabulary) {
            bits[i] = push.logits.value[row * (push.stride / 4) + id / 4];
        }
        bits[i] = within_vocabulary(bits[i], id, push.vocabulary);
        keys[i] = keys_of(bits[i]);
    }

    bool adjusted = draw.changes > 0 || !is_absent(draw.allowed);
    bool drawn = draw.inverse > 0.0 && (draw.top_k == 0 || draw.top_k > CANDIDATES);
    bool scored = (draw.flags & WANT_LSE) != 0;
    Mass mass = Mass(0.0, 0.0, 0.0, 0.0);

    if (scored && (adjusted || !drawn || draw.inverse != 1.0)) {
        mass.raw_most = value_of(group_max(largest(keys)));
        mass.raw_sum = sum_of(bits, mass.raw_most, 1.0);
    }

    if (draw.changes > 0) {
        for (uint i = 0; i < LANE_QUADS; i++) {
            uint at = (i * 256 + lane) * 4;
            part_bits[at] = bits[i].x;
            part_bits[at + 1] = bits[i].y;
            part_bits[at + 2] = bits[i].z;
            part_bits[at + 3] = bits[i].w;
        }
        barrier();
        uint end = draw.first_change + draw.changes;
        for (uint i = change_from(push.changes, draw, start) + lane; i < end; i += 256) {
            Change change = push.changes.change[i];
            if (change.id >= start + PART_IDS) {
                break;
            }
            part_bits[change.id - start] =
                floatBitsToUint(changed(uintBitsToFloat(part_bits[change.id - start]), change));
        }
        barrier();
        for (uint i = 0; i < LANE_QUADS; i++) {
            uint at = (i * 256 + lane) * 4;
            bits[i] = uvec4(part_bits[at], part_bits[at + 1], part_bits[at + 2], part_bits[at + 3]);
        }
    }
    for (uint i = 0; i < LANE_QUADS; i++) {
        uint id = start + (i * 256 + lane) * 4;
        if (!is_absent(draw.allowed) && id < push.vocabulary) {
            bits[i] = within_vocabulary(masked(bits[i], draw.allowed, id), id, push.vocabulary);
        }
        keys[i] = keys_of(bits[i]);
        quad_peak[i * 256 + lane] = max(max(keys[i].x, keys[i].y), max(keys[i].z, keys[i].w));
    }

    mass.most = value_of(group_max(largest(keys)));
    if (lane < PART_BLOCKS) {
        uint most = 0;
        for (uint i = 0; i < BLOCK_IDS / 4; i++) {
            most = max(most, quad_peak[lane * (BLOCK_IDS / 4) + i]);
        }
        push.peaks.value[(row * gl_NumWorkGroups.x + part) * PART_BLOCKS + lane] = most;
    }
    if (drawn) {
        mass.sum = sum_of(bits, mass.most, draw.inverse);
        if (scored && !adjusted && draw.inverse == 1.0) {
            mass.raw_most = mass.most;
            mass.raw_sum = mass.sum;
        }
    }
    if (lane == 0) {
        push.masses.part[row * gl_NumWorkGroups.x + part] = mass;
    }
}
