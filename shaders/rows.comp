#version 460
#extension GL_GOOGLE_include_directive : require
#include "buffers.glsl"

// Rows of one layer and region as bytes in memory that the host sees: positions from `start` on, of each K of all heads,
// then V; a head's row is its units or, where the codec is scaled, blocks of a scale and their units. ROWS_READ: out of
// the region, else into it. What is staged crosses a bus, so neighbouring lanes have neighbouring 16 bytes there.
//
// Where there are scales, a lane's part is two blocks, which end on a word; a group brings its parts together first.
// Groups: ceil(parts / LANES).

layout(constant_id = 0) const uint HEAD_SIZE = 64;
layout(constant_id = 1) const uint KV_HEADS = 1;
const uint LANES = 64;
layout(local_size_x = 64) in;

#define CODEC_STORED
#include "codec.glsl"

layout(push_constant) uniform Push {
    MutableUnits k_quants;
    MutableHalves k_scales;
    MutableUnits v_quants;
    MutableHalves v_scales;
    MutableUnits staged;
    uint region;
    uint positions;  // of a region
    uint start;
    uint rows;
} push;

#ifdef CODEC_SCALED
const uint BLOCKS = HEAD_BLOCKS;
const uint UNITS = 32 / CODEC_VALUES;
#else
const uint BLOCKS = HEAD_UNITS;
const uint UNITS = 1;
#endif

// Where a block is in its planes.
struct Place {
    bool is_value;
    uint unit;
    uint scale;
};

Place place_of(uint index) {
    uint head = index / BLOCKS % (2 * KV_HEADS);
    uint block = index % BLOCKS;
    uint position = push.start + index / (2 * KV_HEADS * BLOCKS);
    uint row = push.region * KV_HEADS + head % KV_HEADS;
    if (head < KV_HEADS) {
        return Place(false, key_unit(row, push.positions, position, block * UNITS),
                     key_scale(row, push.positions, position, block));
    }
    return Place(true, value_unit(row, push.positions, position) + block * UNITS,
                 value_scale(row, push.positions, position) + block);
}

uvec4 read_unit(Place place, uint i) {
    return place.is_value ? push.v_quants.value[place.unit + i] : push.k_quants.value[place.unit + i * STRIP];
}

void write_unit(Place place, uint i, uvec4 unit) {
    if (place.is_value) {
        push.v_quants.value[place.unit + i] = unit;
    } else {
        push.k_quants.value[place.unit + i * STRIP] = unit;
    }
}

#ifdef CODEC_SCALED

const uint PART_WORDS = 8 * UNITS + 1;

shared uint words[LANES * PART_WORDS];

uint read_scale(Place place) {
    return place.is_value ? uint(push.v_scales.value[place.scale]) : uint(push.k_scales.value[place.scale]);
}

void write_scale(Place place, uint scale) {
    if (place.is_value) {
        push.v_scales.value[place.scale] = uint16_t(scale);
    } else {
        push.k_scales.value[place.scale] = uint16_t(scale);
    }
}

// The second block's scale shares a word with the end of the first block.
void read_part(uint part) {
    Place first = place_of(2 * part);
    Place second = place_of(2 * part + 1);
    uint at = gl_LocalInvocationID.x * PART_WORDS;
    uint low = read_scale(first);
    for (uint i = 0; i < UNITS; i++) {
        uvec4 unit = read_unit(first, i);
        for (uint j = 0; j < 4; j++) {
            words[at++] = low | unit[j] << 16;
            low = unit[j] >> 16;
        }
    }
    words[at++] = low | read_scale(second) << 16;
    for (uint i = 0; i < UNITS; i++) {
        uvec4 unit = read_unit(second, i);
        for (uint j = 0; j < 4; j++) {
            words[at++] = unit[j];
        }
    }
}

void write_part(uint part) {
    Place first = place_of(2 * part);
    Place second = place_of(2 * part + 1);
    uint at = gl_LocalInvocationID.x * PART_WORDS;
    write_scale(first, words[at] & 0xffff);
    for (uint i = 0; i < UNITS; i++, at += 4) {
        uvec4 unit;
        for (uint j = 0; j < 4; j++) {
            unit[j] = words[at + j] >> 16 | words[at + j + 1] << 16;
        }
        write_unit(first, i, unit);
    }
    write_scale(second, words[at++] >> 16);
    for (uint i = 0; i < UNITS; i++, at += 4) {
        write_unit(second, i, uvec4(words[at], words[at + 1], words[at + 2], words[at + 3]));
    }
}

void main() {
    const uint group_units = LANES * PART_WORDS / 4;
    uint lane = gl_LocalInvocationID.x;
    uint parts = push.rows * KV_HEADS * BLOCKS;
    uint first = gl_WorkGroupID.x * group_units;
    uint count = min(group_units, (parts * PART_WORDS + 3) / 4 - first);
    bool is_there = gl_GlobalInvocationID.x < parts;
#ifdef ROWS_READ
    if (is_there) {
        read_part(gl_GlobalInvocationID.x);
    }
    barrier();
    for (uint i = lane; i < count; i += LANES) {
        push.staged.value[first + i] = uvec4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    }
#else
    for (uint i = lane; i < count; i += LANES) {
        uvec4 unit = push.staged.value[first + i];
        for (uint j = 0; j < 4; j++) {
            words[4 * i + j] = unit[j];
        }
    }
    barrier();
    if (is_there) {
        write_part(gl_GlobalInvocationID.x);
    }
#endif
}

#else

void main() {
    uint index = gl_GlobalInvocationID.x;
    if (index >= push.rows * 2 * KV_HEADS * BLOCKS) {
        return;
    }
#ifdef ROWS_READ
    push.staged.value[index] = read_unit(place_of(index), 0);
#else
    write_unit(place_of(index), 0, push.staged.value[index]);
#endif
}

#endif
