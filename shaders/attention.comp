#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "buffers.glsl"
#include "step.glsl"

// Attention of each row over the positions of its region that it may see: its own and those before, the last `window`
// of them where `window` is not 0. Queries are as `heads` has left them; the output is back in the model's basis,
// quantised or as floats.
//
// Groups: (KV heads * (heads per KV head / QUERIES), ceil(rows / QUERY_ROWS), splits). A group has QUERIES query heads,
// which share a K/V head, of QUERY_ROWS rows, which it takes run by run: a run's rows stand one behind the other in the
// same region and share what is read. A tile is 64 positions aligned to position 0; its largest score, sum of weights
// and weighted values are its own, and a row's tiles are combined in ascending order by `combine`. With one split, a
// group combines as it goes. With several, for which QUERY_ROWS is 1, each has a part of the row's tiles and puts them
// into `partials`; the group that comes last, as `counters` tell, combines them all and leaves its counter at 0. So
// QUERIES, QUERY_ROWS, AHEAD and the number of splits change no bit. LANES may: the order of sums depends on it.
//
// HEAD_SIZE: at most 1024, what the codec can keep. LANES: 8, 16, 32 or 64. QUERIES * QUERY_ROWS: at most 12, and with
// HEAD_SIZE at most 4096. OUT_QUANTISED: needs a HEAD_SIZE that is a multiple of 32. AHEAD: positions whose values a
// lane asks for at once.
// partials: TILE_QUADS vec4 for each tile of each group of the grid's first plane, `partial_tiles` tiles a group.
// counters: a uint for each of these groups, 0 before the first step.

layout(constant_id = 0) const uint HEAD_SIZE = 64;
layout(constant_id = 1) const uint LANES = 64;
layout(constant_id = 2) const uint QUERIES = 1;
layout(constant_id = 3) const uint QUERY_ROWS = 1;
layout(constant_id = 4) const uint OUT_QUANTISED = 0;
layout(constant_id = 5) const uint AHEAD = 4;
layout(local_size_x_id = 1) in;

const uint VECTORS = QUERY_ROWS * QUERIES;

// The query vectors while tiles are read, then the output.
shared vec4 heads[VECTORS * HEAD_SIZE / 4];

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

const uint TILE = 64;
const uint TOGETHER = LANES > 16 ? TILE / LANES : 4;  // positions that a lane scores at once
const float LOG2_E = 1.44269504;
const float LOWEST = -3.0e38;

// Of the values a lane weighs one quad of a head at every PARTS-th position; or, where a head has more quads than the
// group has lanes, LANE_QUADS quads at every position. Of the sums over all parts it then owns every PARTS-th vector's.
const uint PARTS = LANES > HEAD_QUADS ? LANES / HEAD_QUADS : 1;
const uint LANE_QUADS = (HEAD_QUADS + LANES - 1) / LANES;
const uint OWN = (VECTORS + PARTS - 1) / PARTS;
const uint WEIGHT_QUADS = (VECTORS + 3) / 4;
const uint TEAMS = 8;  // of lanes, in which the largest score is found
const uint TILE_QUADS = OWN * LANE_QUADS * LANES + VECTORS;

shared vec4 lane_most[WEIGHT_QUADS * LANES];
shared vec4 team_most[WEIGHT_QUADS * TEAMS];
shared vec4 tile_most[WEIGHT_QUADS];
shared vec4 weights[TILE * WEIGHT_QUADS];
shared vec4 part_values[PARTS > 1 ? VECTORS * LANES : 1];
shared float part_totals[PARTS > 1 ? VECTORS * PARTS : 1];
#ifdef CODEC_SCALED
shared float value_scales[TILE * HEAD_BLOCKS];
#endif
shared uint arrived;

// The running softmax of the vectors that a lane owns: largest score, sum of weights, weighted values.
float most[OWN];
float total[OWN];
vec4 values[OWN][LANE_QUADS];

// The same of the tile at hand, and before that what the lane's part gives to it.
float tile_total[OWN];
vec4 tile_values[OWN][LANE_QUADS];
vec4 lane_highest[WEIGHT_QUADS];
float part_total[VECTORS];
vec4 weighted[VECTORS][LANE_QUADS];

// The run: its first row, that row's position, and how many rows; the K/V head's number among all regions.
uint first_row, first_position, run_rows, region_head;

// A product is rounded before it is added: fma() cannot be `precise`, and compilers reorder what they may.
float plus_product(float sum, float a, float b) {
    precise float product = a * b;
    precise float more = sum + product;
    return more;
}

vec4 plus_product(vec4 sum, float a, vec4 b) {
    precise vec4 product = a * b;
    precise vec4 more = sum + product;
    return more;
}

float plus_products(float sum, vec4 a, vec4 b) {
    precise vec4 product = a * b;
    precise float more = sum + product.x;
    more += product.y;
    more += product.z;
    more += product.w;
    return more;
}

// Which part's positions a lane takes, and the vector that it owns as its k-th; where there are lanes or turns left
// over, they do again what others do.
uint part_of_lane() {
    return PARTS > 1 ? min(gl_LocalInvocationID.x / HEAD_QUADS, PARTS - 1) : 0;
}

uint quad_of_lane(uint j) {
    return PARTS > 1 ? gl_LocalInvocationID.x % HEAD_QUADS : min(j * LANES + gl_LocalInvocationID.x, HEAD_QUADS - 1);
}

uint owned_vector(uint k) {
    return PARTS > 1 ? min(part_of_lane() + k * PARTS, VECTORS - 1) : k;
}

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
    barrier();
    precise float scale = push.scale * LOG2_E;
    for (uint i = gl_LocalInvocationID.x; i < VECTORS * HEAD_QUADS; i += LANES) {
        uint r = min(i / (QUERIES * HEAD_QUADS), run_rows - 1);
        uint quad = gl_WorkGroupID.x * QUERIES * HEAD_QUADS + i % (QUERIES * HEAD_QUADS);
        precise vec4 q = push.q.value[(first_row + r) * (push.q_stride / 4) + quad] * scale;
        heads[i] = q;
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

// The scores of TOGETHER positions of the tile, `first` and every LANES-th behind it, as `weights`; LOWEST where a row
// does not see a position.
void score_some(uint start, uint first) {
    precise float scores[TOGETHER][4 * WEIGHT_QUADS];
    [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
        [[unroll]] for (uint v = 0; v < 4 * WEIGHT_QUADS; v++) {
            scores[i][v] = 0.0;
        }
    }
    for (uint unit = 0; unit < HEAD_UNITS; unit++) {
        uvec4 keys[TOGETHER];
        precise float sums[TOGETHER][VECTORS];
        [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
            keys[i] = load_unit(push.k_quants, key_unit(region_head, push.positions, start + first + i * LANES, unit));
            [[unroll]] for (uint v = 0; v < VECTORS; v++) {
#ifdef CODEC_SCALED
                sums[i][v] = 0.0;
#else
                sums[i][v] = scores[i][v];
#endif
            }
        }
        for (uint c = 0; c < UNIT_QUADS; c++) {
            vec4 x[TOGETHER];
            [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
                x[i] = key_quad(keys[i], c);
            }
            [[unroll]] for (uint v = 0; v < VECTORS; v++) {
                vec4 q = heads[v * HEAD_QUADS + unit * UNIT_QUADS + c];
                [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
                    sums[i][v] = plus_products(sums[i][v], q, x[i]);
                }
            }
        }
        [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
#ifdef CODEC_SCALED
            uint block = unit * CODEC_VALUES / 32;
            uint at = key_scale(region_head, push.positions, start + first + i * LANES, block);
            float scale = float_of_half(uint(push.k_scales.value[at]));
#endif
            [[unroll]] for (uint v = 0; v < VECTORS; v++) {
#ifdef CODEC_SCALED
                scores[i][v] = plus_product(scores[i][v], scale, sums[i][v]);
#else
                scores[i][v] = sums[i][v];
#endif
            }
        }
    }
    [[unroll]] for (uint four = 0; four < WEIGHT_QUADS; four++) {
        [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
            uint p = first + i * LANES;
            vec4 some;
            [[unroll]] for (uint j = 0; j < 4; j++) {
                uvec2 seen = visible(start, min(four * 4 + j, VECTORS - 1) / QUERIES);
                some[j] = p >= seen.x && p < seen.y ? scores[i][four * 4 + j] : LOWEST;
            }
            weights[p * WEIGHT_QUADS + four] = some;
            lane_highest[four] = max(lane_highest[four], some);
        }
    }
}

// The tile's weights: 2 to the power of score less the vector's largest one; 0 where a row does not see a position.
void score(uint start) {
    uint lane = gl_LocalInvocationID.x;
    [[unroll]] for (uint four = 0; four < WEIGHT_QUADS; four++) {
        lane_highest[four] = vec4(LOWEST);
    }
    for (uint first = lane; first < TILE; first += TOGETHER * LANES) {
        score_some(start, first);
    }
    [[unroll]] for (uint four = 0; four < WEIGHT_QUADS; four++) {
        lane_most[four * LANES + lane] = lane_highest[four];
    }
    barrier();
#ifdef CODEC_SCALED
    uint first_scale = value_scale(region_head, push.positions, start);
    for (uint i = lane; i < TILE * HEAD_BLOCKS; i += LANES) {
        value_scales[i] = float_of_half(uint(push.v_scales.value[first_scale + i]));
    }
#endif
    for (uint i = lane; i < WEIGHT_QUADS * TEAMS; i += LANES) {
        vec4 highest = vec4(LOWEST);
        for (uint j = i % TEAMS; j < LANES; j += TEAMS) {
            highest = max(highest, lane_most[i / TEAMS * LANES + j]);
        }
        team_most[i] = highest;
    }
    barrier();
    for (uint four = 0; four < WEIGHT_QUADS; four++) {
        vec4 highest = team_most[four * TEAMS];
        for (uint i = 1; i < TEAMS; i++) {
            highest = max(highest, team_most[four * TEAMS + i]);
        }
        if (lane == 0) {
            tile_most[four] = highest;
        }
        for (uint p = lane; p < TILE; p += LANES) {
            vec4 scores = weights[p * WEIGHT_QUADS + four];
            weights[p * WEIGHT_QUADS + four] = mix(exp2(scores - highest), vec4(0.0), equal(scores, vec4(LOWEST)));
        }
    }
    barrier();
}

// A value as it is weighed. What is not finite is as large as can be: a weight of 0, which stands for a position that a
// row does not see, makes 0 of it all the same.
vec4 bounded(vec4 x) {
    return mix(vec4(-LOWEST), x, lessThanEqual(abs(x), vec4(-LOWEST)));
}

// The sum of weights and the weighted values of the tile, of the vectors that this lane owns.
void weigh(uint start) {
    uint lane = gl_LocalInvocationID.x;
    uint part = part_of_lane();
    [[unroll]] for (uint v = 0; v < VECTORS; v++) {
        part_total[v] = 0.0;
        [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
            weighted[v][j] = vec4(0.0);
        }
    }
    uint from = visible(start, 0).x;
    uint to = PARTS == 1 || lane < PARTS * HEAD_QUADS ? visible(start, run_rows - 1).y : 0;
    for (uint p = from + (part + PARTS - from % PARTS) % PARTS; p < to; p += AHEAD * PARTS) {
        vec4 x[AHEAD][LANE_QUADS];
        [[unroll]] for (uint b = 0; b < AHEAD; b++) {
            uint at = p + b * PARTS < to ? p + b * PARTS : p;
            uint first = value_unit(region_head, push.positions, start + at);
            [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
                x[b][j] = value_quad(push.v_quants, first, quad_of_lane(j));
#ifdef CODEC_SCALED
                precise vec4 scaled = x[b][j] * value_scales[at * HEAD_BLOCKS + quad_of_lane(j) / 8];
                x[b][j] = scaled;
#endif
                x[b][j] = bounded(x[b][j]);
            }
        }
        [[unroll]] for (uint b = 0; b < AHEAD; b++) {
            uint at = p + b * PARTS;
            [[unroll]] for (uint four = 0; four < WEIGHT_QUADS; four++) {
                vec4 weight = at < to ? weights[at * WEIGHT_QUADS + four] : vec4(0.0);
                [[unroll]] for (uint i = 0; i < 4; i++) {
                    uint v = four * 4 + i;
                    if (v < VECTORS) {
                        precise float sum = part_total[v] + weight[i];
                        part_total[v] = sum;
                        [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
                            weighted[v][j] = plus_product(weighted[v][j], weight[i], x[b][j]);
                        }
                    }
                }
            }
        }
    }
    if (PARTS > 1 && lane < PARTS * HEAD_QUADS) {
        [[unroll]] for (uint v = 0; v < VECTORS; v++) {
            part_values[v * LANES + lane] = weighted[v][0];
            if (quad_of_lane(0) == 0) {
                part_totals[v * PARTS + part_of_lane()] = part_total[v];
            }
        }
    }
    barrier();
    [[unroll]] for (uint k = 0; k < OWN; k++) {
        if (PARTS > 1) {
            uint v = owned_vector(k);
            precise vec4 all_values = part_values[v * LANES + quad_of_lane(0)];
            precise float all = part_totals[v * PARTS];
            for (uint i = 1; i < PARTS; i++) {
                all_values += part_values[v * LANES + i * HEAD_QUADS + quad_of_lane(0)];
                all += part_totals[v * PARTS + i];
            }
            tile_values[k][0] = all_values;
            tile_total[k] = all;
        } else {
            [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
                tile_values[k][j] = weighted[k][j];
            }
            tile_total[k] = part_total[k];
        }
    }
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
            vec4 softmax = vec4(tile_most[v / 4][v % 4], tile_total[k], 0.0, 0.0);
            push.partials.value[at + OWN * LANE_QUADS * LANES + v] = softmax;
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

void write_output() {
    [[unroll]] for (uint k = 0; k < OWN; k++) {
        precise float inverse = 1.0 / total[k];
        [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
            precise vec4 mean = values[k][j] * inverse;
            heads[owned_vector(k) * HEAD_QUADS + quad_of_lane(j)] = mean;
        }
    }
#ifdef CODEC_ROTATED
    hadamard(VECTORS * HEAD_QUADS);
#else
    barrier();
#endif
    const uint row_quads = QUERIES * HEAD_QUADS;
    [[dont_unroll]] for (uint first = 0; first < VECTORS * HEAD_QUADS; first += LANES) {
        uint i = first + gl_LocalInvocationID.x;
        bool is_there = i < run_rows * row_quads;
        vec4 x = is_there ? heads[i] : vec4(0.0);
#ifdef CODEC_ROTATED
        x *= signs_of(i % HEAD_QUADS);
#endif
        uint row = first_row + i / row_quads;
        uint quad = is_there ? gl_WorkGroupID.x * row_quads + i % row_quads : ~0u;
        if (OUT_QUANTISED != 0) {
            write_quantised(x, row, quad, gl_NumWorkGroups.x * QUERIES * HEAD_SIZE, push.out_, push.out_scales);
        } else if (is_there) {
            MutableFloatQuads(push.out_).value[row * (push.out_stride / 4) + quad] = x;
        }
    }
}

void attend() {
    uint first_tile = lowest_of(0) / TILE;
    uint tiles = (first_position + run_rows - 1) / TILE + 1 - first_tile;
    bool is_alone = QUERY_ROWS > 1 || gl_NumWorkGroups.z == 1;
    uint end = tiles * (gl_WorkGroupID.z + 1) / gl_NumWorkGroups.z;
    begin();
    for (uint tile = tiles * gl_WorkGroupID.z / gl_NumWorkGroups.z; tile < end; tile++) {
        uint start = (first_tile + tile) * TILE;
        score(start);
        weigh(start);
        if (is_alone) {
            [[unroll]] for (uint k = 0; k < OWN; k++) {
                uint v = owned_vector(k);
                uvec2 seen = visible(start, v / QUERIES);
                if (seen.x < seen.y) {
                    combine(k, tile_most[v / 4][v % 4]);
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

void main() {
    uint kv_head = gl_WorkGroupID.x / (gl_NumWorkGroups.x / push.kv_heads);
    uint row = gl_WorkGroupID.y * QUERY_ROWS;
    uint end = min(row + QUERY_ROWS, push.step.rows);
    while (row < end) {
        ivec4 first = push.step.row[row];
        first_row = row;
        first_position = uint(first.y);
        region_head = uint(first.z) * push.kv_heads + kv_head;
        for (row++; row < end && push.step.row[row].yz == first.yz + ivec2(row - first_row, 0); row++) {
        }
        run_rows = row - first_row;
        attend();
    }
}
