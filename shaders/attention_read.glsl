// How attention reads the tile at hand. With UNITS the group reads it as a whole: lanes ask for a part of it, neighbours
// for neighbouring units, while they compute with the part before, which all find in shared memory. Without, each lane
// reads what it needs.
//
// A part of the keys is KEY_SPAN units of all positions, a part of the values all units of VALUE_SPAN positions. Only
// what a row of the run sees is read. The entry (attention.comp) declares the constants, the push block and the run.

#ifndef ATTENTION_READ_GLSL
#define ATTENTION_READ_GLSL

#include "codec.glsl"

const uint TILE = 64;

const uint STAGED = UNITS * LANES;
const uint COLUMNS_STAGED = UNITS > 0 ? STAGED / TILE : HEAD_UNITS;
const uint KEY_SPAN = COLUMNS_STAGED < HEAD_UNITS ? COLUMNS_STAGED : HEAD_UNITS;
const uint ROWS_STAGED = UNITS > 0 ? STAGED / HEAD_UNITS : TILE;
const uint VALUE_SPAN =
    ROWS_STAGED >= 64 ? 64u : ROWS_STAGED >= 32 ? 32u : ROWS_STAGED >= 16 ? 16u : ROWS_STAGED >= 8 ? 8u : 4u;

// Halves of units: of keys by unit, half and position, of values as they lie in memory.
shared uvec2 staged[UNITS > 0 ? 2 * STAGED : 1];
uvec4 asked[UNITS > 0 ? UNITS : 1];

#ifdef CODEC_SCALED
// Scales of two neighbouring positions for keys, of two neighbouring blocks for values.
const uint KEY_BLOCKS = (KEY_SPAN * CODEC_VALUES + 16) / 32;
const uint KEY_PAIRS = UNITS > 0 ? KEY_BLOCKS * TILE / 2 : 0;
const uint VALUE_PAIRS = VALUE_SPAN * HEAD_BLOCKS / 2;
const uint SCALE_PAIRS = KEY_PAIRS > VALUE_PAIRS ? KEY_PAIRS : VALUE_PAIRS;
const uint LANE_PAIRS = (SCALE_PAIRS + LANES - 1) / LANES;

shared vec2 scales[SCALE_PAIRS];
uint scales_asked[UNITS > 0 ? LANE_PAIRS : 1];

float scale_at(uint i) {
    return scales[i / 2][i % 2];
}
#endif

// The first position that row `r` of the run sees.
uint lowest_of(uint r) {
    uint behind = first_position + r + 1;
    return push.window == 0 || behind < push.window ? 0 : behind - push.window;
}

// The positions [x, y) of the tile at `start` that row `r` of the run sees; x = y where it sees none.
uvec2 visible(uint start, uint r) {
    uint to = r < run_rows ? clamp(first_position + r + 1, start, start + TILE) - start : 0;
    return uvec2(min(max(lowest_of(r), start) - start, to), to);
}

// The positions of the tile at `start` from the first to the last one that any row sees.
uvec2 visible_to_run(uint start) {
    return uvec2(visible(start, 0).x, visible(start, run_rows - 1).y);
}

bool is_within(uint position, uvec2 range) {
    return position >= range.x && position < range.y;
}

// Ask for a part of the keys: units from `first` on.
void ask_for_keys(uint start, uint first) {
    uint lane = gl_LocalInvocationID.x;
    uvec2 seen = visible_to_run(start);
    [[unroll]] for (uint i = 0; i < UNITS; i++) {
        uint column = (i * LANES + lane) / TILE;
        uint position = lane % TILE;
        asked[i] = uvec4(0);
        if (column < KEY_SPAN && first + column < HEAD_UNITS && is_within(position, seen)) {
            uint at = key_unit(region_head, push.positions, start + position, first + column);
            asked[i] = push.k_quants.value[at];
        }
    }
#ifdef CODEC_SCALED
    [[unroll]] for (uint i = 0; i < LANE_PAIRS; i++) {
        uint pair = i * LANES + lane;
        uint block = first * CODEC_VALUES / 32 + pair / (TILE / 2);
        uint position = pair % (TILE / 2) * 2;
        scales_asked[i] = 0;
        if (pair < KEY_PAIRS && block < HEAD_BLOCKS && position + 1 >= seen.x && position < seen.y) {
            uint at = key_scale(region_head, push.positions, start + position, block);
            scales_asked[i] = Words(push.k_scales).value[at / 2];
        }
    }
#endif
}

// Ask for a part of the values: positions from `first` of the tile on.
void ask_for_values(uint start, uint first) {
    uint lane = gl_LocalInvocationID.x;
    uvec2 seen = visible_to_run(start);
    uint first_unit = value_unit(region_head, push.positions, start + first);
    [[unroll]] for (uint i = 0; i < UNITS; i++) {
        uint unit = i * LANES + lane;
        asked[i] = uvec4(0);
        if (unit < VALUE_SPAN * HEAD_UNITS && is_within(first + unit / HEAD_UNITS, seen)) {
            asked[i] = push.v_quants.value[first_unit + unit];
        }
    }
#ifdef CODEC_SCALED
    uint first_pair = value_scale(region_head, push.positions, start + first) / 2;
    [[unroll]] for (uint i = 0; i < LANE_PAIRS; i++) {
        uint pair = i * LANES + lane;
        uint from = first + 2 * pair / HEAD_BLOCKS, to = first + (2 * pair + 1) / HEAD_BLOCKS;
        scales_asked[i] = 0;
        if (pair < VALUE_PAIRS && to >= seen.x && from < seen.y) {
            scales_asked[i] = Words(push.v_scales).value[first_pair + pair];
        }
    }
#endif
}

#ifdef CODEC_SCALED
void share_scales() {
    [[unroll]] for (uint i = 0; i < LANE_PAIRS; i++) {
        uint pair = i * LANES + gl_LocalInvocationID.x;
        if (pair < SCALE_PAIRS) {
            scales[pair] = unpackHalf2x16(scales_asked[i]);
        }
    }
}
#endif

// Put what was asked for where all lanes find it.
void share_keys() {
    uint position = gl_LocalInvocationID.x % TILE;
    [[unroll]] for (uint i = 0; i < UNITS; i++) {
        uint column = (i * LANES + gl_LocalInvocationID.x) / TILE;
        staged[2 * column * TILE + position] = asked[i].xy;
        staged[(2 * column + 1) * TILE + position] = asked[i].zw;
    }
#ifdef CODEC_SCALED
    share_scales();
#endif
}

void share_values() {
    [[unroll]] for (uint i = 0; i < UNITS; i++) {
        uint unit = i * LANES + gl_LocalInvocationID.x;
        staged[2 * unit] = asked[i].xy;
        staged[2 * unit + 1] = asked[i].zw;
    }
#ifdef CODEC_SCALED
    share_scales();
#endif
}

// Unit `unit` of the keys of a position of the tile. first: the first unit of the part at hand.
uvec4 key_of(uint start, uint position, uint unit, uint first) {
    if (UNITS == 0) {
        return load_unit(push.k_quants, key_unit(region_head, push.positions, start + position, unit));
    }
    uint at = 2 * (unit - first) * TILE + position;
    return uvec4(staged[at], staged[at + TILE]);
}

#ifdef CODEC_SCALED
float key_scale_of(uint start, uint position, uint unit, uint first) {
    uint block = unit * CODEC_VALUES / 32;
    if (UNITS == 0) {
        return float_of_half(uint(push.k_scales.value[key_scale(region_head, push.positions, start + position, block)]));
    }
    return scale_at((block - first * CODEC_VALUES / 32) * TILE + position);
}
#endif

// The scales of the tile's values, for lanes that read the values themselves.
void read_value_scales(uint start) {
#ifdef CODEC_SCALED
    uint first = value_scale(region_head, push.positions, start) / 2;
    for (uint i = gl_LocalInvocationID.x; i < VALUE_PAIRS; i += LANES) {
        scales[i] = unpackHalf2x16(Words(push.v_scales).value[first + i]);
    }
#endif
}

// A quad of the values of a position of the tile. first: the first position of the part at hand.
vec4 value_of(uint start, uint position, uint quad, uint first) {
    CODEC_PIECE piece;
    uint at = piece_of(quad);
    if (UNITS == 0) {
        piece = load_piece(push.v_quants, value_unit(region_head, push.positions, start + position) * UNIT_PIECES + at);
    } else {
        at += (position - first) * HEAD_UNITS * UNIT_PIECES;
#ifdef CODEC_PAIRS
        piece = staged[at];
#else
        piece = staged[at / 2][at % 2];
#endif
    }
    vec4 x = quad_of_piece(piece, quad);
#ifdef CODEC_SCALED
    precise vec4 scaled = x * scale_at((position - first) * HEAD_BLOCKS + quad / 8);
    return scaled;
#else
    return x;
#endif
}

#endif
