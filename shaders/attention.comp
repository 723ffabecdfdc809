#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "buffers.glsl"
#include "step.glsl"

// Attention of each row over the positions of its region that it may see: its own and those before, the last `window`
// of them where `window` is not 0. Queries are as `heads` has left them; the output is back in the model's basis,
// quantised or as floats.
//
// Groups: (KV heads * ceil(GROUP / QUERIES), rows, splits). A group has QUERIES of the GROUP query heads that share a
// K/V head, of a run of rows: those that stand one behind the other in the same region, from its own row up to the next
// multiple of QUERY_ROWS. It reads K and V once for all of them; a group whose row goes with the one before has nothing
// to do. A tile is 64 positions aligned to position 0; its largest score, sum of weights and weighted values are its own,
// each sum one chain over the tile's positions, and a row's tiles are combined in ascending order by `combine`. With one
// split, a group combines as it goes. With several, each has a part of the row's tiles and puts them into `partials`; the
// group that comes last, as `counters` tell, combines them all and leaves its counter at 0. So neither the constants
// below nor the number of splits change a bit.
//
// HEAD_SIZE: at most 1024, what the codec can keep. LANES: 8, 16, 32 or a multiple of 64. OUT_QUANTISED: needs a
// HEAD_SIZE that is a multiple of 32. HELD: query vectors that shared memory has room for; where these are not all,
// queries are read as they are needed. SCORED: query vectors of which a lane has scores.
// UNITS: units of K and V that a lane asks for at once, for the whole group. LANES is a multiple of 64 then, LANES / 64 *
// SCORED at least QUERIES * QUERY_ROWS, UNITS * LANES at least 64 and four rows of units. Or 0, for devices on which
// meeting costs more than reading: each lane reads what it needs, SCORED is QUERIES * QUERY_ROWS.
// Splits: one where QUERY_ROWS is more than 1 or UNITS is 0.
// partials: TILE_QUADS vec4 for each tile of each group of the grid's first plane, `partial_tiles` tiles a group.
// counters: a uint for each of these groups, 0 before the first step.

layout(constant_id = 0) const uint HEAD_SIZE = 64;
layout(constant_id = 1) const uint LANES = 64;
layout(constant_id = 2) const uint GROUP = 1;
layout(constant_id = 3) const uint QUERIES = 1;
layout(constant_id = 4) const uint QUERY_ROWS = 1;
layout(constant_id = 5) const uint OUT_QUANTISED = 0;
layout(constant_id = 6) const uint HELD = 1;
layout(constant_id = 7) const uint SCORED = 1;
layout(constant_id = 8) const uint UNITS = 0;
layout(local_size_x_id = 1) in;

const uint VECTORS = QUERY_ROWS * QUERIES;

// The query vectors while tiles are read, then the output.
shared vec4 heads[HELD * HEAD_SIZE / 4];

#include "codec.glsl"
#include "rows.glsl"

BUFFER coherent buffer Partials { vec4 value[]; };
BUFFER coherent buffer Counters { uint value[]; };

layout(push_constant) uniform Push {
    FloatQuads q;
    Units k_quants;
    Halves k_scales;
    Units v_quants;
    Halves v_scales;
    Step step;
    MutableWords out_;
    MutableWordPairs out_scales;
    Partials partials;
    Counters counters;
    uint q_stride;
    uint out_stride;     // where floats are written
    uint kv_heads;
    uint positions;      // of a region
    uint window;
    uint partial_tiles;
    float scale;
} push;

// The run: its first row, that row's position, and how many rows; the K/V head's number among all regions, and the
// group's first query head.
uint first_row, first_position, run_rows, region_head, first_head;

#include "attention_tile.glsl"

shared uint arrived;

// The running softmax of the vectors that a lane owns: largest score, sum of weights, weighted values.
float most[OWN];
float total[OWN];
vec4 values[OWN][LANE_QUADS];

// Fold the tile at hand, whose largest score is `most_of_tile`, into the tiles before.
void combine(uint k, float most_of_tile) {
    float highest = max(most[k], most_of_tile);
    precise float keep = exp2(most[k] - highest);
    precise float take = exp2(most_of_tile - highest);
    precise float sum = total[k] * keep + tile_total[k] * take;
    [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
        precise vec4 both = values[k][j] * keep + tile_values[k][j] * take;
        values[k][j] = both;
    }
    total[k] = sum;
    most[k] = highest;
}

void begin() {
    if (HELD >= VECTORS) {
        for (uint i = gl_LocalInvocationID.x; i < VECTORS * HEAD_QUADS; i += LANES) {
            heads[i] = query_in_memory(i / HEAD_QUADS, i % HEAD_QUADS);
        }
    }
    [[unroll]] for (uint k = 0; k < OWN; k++) {
        most[k] = LOWEST;
        total[k] = 0.0;
        [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
            values[k][j] = vec4(0.0);
        }
    }
    barrier();
}

uint group_of_plane() {
    return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
}

// The first vec4 of a tile's partials: lanes' values, then by vector its largest score and its sum of weights.
uint partial_of(uint tile) {
    return (group_of_plane() * push.partial_tiles + tile) * TILE_QUADS;
}

void keep_partials(uint tile) {
    uint lane = gl_LocalInvocationID.x;
    uint at = partial_of(tile);
    [[unroll]] for (uint k = 0; k < OWN; k++) {
        [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
            push.partials.value[at + (k * LANE_QUADS + j) * LANES + lane] = tile_values[k][j];
        }
        if (quad_of_lane(0) == 0) {
            uint v = owned_vector(k);
            push.partials.value[at + OWN * LANE_QUADS * LANES + v] = vec4(most_of_tile(v), tile_total[k], 0.0, 0.0);
        }
    }
}

void combine_partials(uint tiles) {
    uint lane = gl_LocalInvocationID.x;
    for (uint tile = 0; tile < tiles; tile++) {
        uint at = partial_of(tile);
        [[unroll]] for (uint k = 0; k < OWN; k++) {
            [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
                tile_values[k][j] = push.partials.value[at + (k * LANE_QUADS + j) * LANES + lane];
            }
            vec4 softmax = push.partials.value[at + OWN * LANE_QUADS * LANES + owned_vector(k)];
            tile_total[k] = softmax.y;
            combine(k, softmax.x);
        }
    }
}

// Whether this group is the last of those that share its rows. Then it can read all that they have written.
bool is_last() {
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x == 0) {
        memoryBarrierBuffer();  // what all lanes wrote is there before it is counted, and read after
        arrived = atomicAdd(push.counters.value[group_of_plane()], 1) + 1;
        if (arrived == gl_NumWorkGroups.z) {
            push.counters.value[group_of_plane()] = 0;
        }
        memoryBarrierBuffer();
    }
    barrier();
    memoryBarrierBuffer();
    return arrived == gl_NumWorkGroups.z;
}

// Write the output of the vectors from `first` on, as many as `heads` has room for.
void write_some(uint first) {
    [[unroll]] for (uint k = 0; k < OWN; k++) {
        uint v = owned_vector(k);
        if (HELD >= VECTORS || v >= first && v < first + HELD) {
            precise float inverse = 1.0 / total[k];
            [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
                precise vec4 mean = values[k][j] * inverse;
                heads[(v - first) * HEAD_QUADS + quad_of_lane(j)] = mean;
            }
        }
    }
#ifdef CODEC_ROTATED
    hadamard(HELD * HEAD_QUADS);
#else
    barrier();
#endif
    [[dont_unroll]] for (uint start = 0; start < HELD * HEAD_QUADS; start += LANES) {
        uint i = start + gl_LocalInvocationID.x;
        uint v = first + i / HEAD_QUADS;
        bool is_there = i < HELD * HEAD_QUADS && v / QUERIES < run_rows && v % QUERIES < GROUP - first_head % GROUP;
        vec4 x = is_there ? heads[i] : vec4(0.0);
#ifdef CODEC_ROTATED
        x *= signs_of(i % HEAD_QUADS);
#endif
        uint row = first_row + v / QUERIES;
        uint quad = is_there ? (first_head + v % QUERIES) * HEAD_QUADS + i % HEAD_QUADS : ~0u;
        if (OUT_QUANTISED != 0) {
            write_quantised(x, row, quad, push.kv_heads * GROUP * HEAD_SIZE, push.out_, push.out_scales);
        } else if (is_there) {
            MutableFloatQuads(push.out_).value[row * (push.out_stride / 4) + quad] = x;
        }
    }
}

void write_output() {
    [[dont_unroll]] for (uint first = 0; first < VECTORS; first += HELD) {
        barrier();
        write_some(first);
    }
}

void attend() {
    uint first_tile = lowest_of(0) / TILE;
    uint tiles = (first_position + run_rows - 1) / TILE + 1 - first_tile;
    bool is_alone = QUERY_ROWS > 1 || UNITS == 0 || gl_NumWorkGroups.z == 1;
    uint tile = tiles * gl_WorkGroupID.z / gl_NumWorkGroups.z;
    uint end = tiles * (gl_WorkGroupID.z + 1) / gl_NumWorkGroups.z;
    begin();
    if (UNITS > 0 && tile < end) {
        ask_for_keys((first_tile + tile) * TILE, 0);
    }
    for (; tile < end; tile++) {
        uint start = (first_tile + tile) * TILE;
        score(start);
        weigh(start, tile + 1 < end);
        if (is_alone) {
            [[unroll]] for (uint k = 0; k < OWN; k++) {
                uint v = owned_vector(k);
                uvec2 seen = visible(start, v / QUERIES);
                if (seen.x < seen.y) {
                    combine(k, most_of_tile(v));
                }
            }
        } else {
            keep_partials(tile);
        }
    }
    bool finishes = is_alone;
    if (!is_alone && is_last()) {
        combine_partials(tiles);
        finishes = true;
    }
    if (finishes) {
        write_output();
    }
}

// Whether a row, not the first, stands behind the one before it in the same region.
bool follows(uint row) {
    return push.step.row[row].yz == push.step.row[row - 1].yz + ivec2(1, 0);
}

void main() {
    uint parts = gl_NumWorkGroups.x / push.kv_heads;
    uint kv_head = gl_WorkGroupID.x / parts;
    first_row = gl_WorkGroupID.y;
    if (first_row % QUERY_ROWS != 0 && follows(first_row)) {
        return;
    }
    uint end = min(first_row - first_row % QUERY_ROWS + QUERY_ROWS, push.step.rows);
    for (run_rows = 1; first_row + run_rows < end && follows(first_row + run_rows); run_rows++) {
    }
    ivec4 row = push.step.row[first_row];
    first_position = uint(row.y);
    region_head = uint(row.z) * push.kv_heads + kv_head;
    first_head = kv_head * GROUP + gl_WorkGroupID.x % parts * QUERIES;
    attend();
}
