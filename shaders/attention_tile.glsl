// One tile of attention: scores become weights, weights of values become sums. Each sum is one chain, over the values of
// a head or over the positions of the tile, in ascending order. The entry (attention.comp) declares the constants, the
// push block and the run.

#ifndef ATTENTION_TILE_GLSL
#define ATTENTION_TILE_GLSL

#include "attention_read.glsl"

const float LOG2_E = 1.44269504;
const float LOWEST = -3.0e38;

// Positions that a lane scores at once, every LANES-th; lanes past a tile's share the vectors with those before.
const uint TOGETHER = LANES >= TILE ? 1 : LANES > 16 ? TILE / LANES : 4;
const uint TEAMS = LANES > TILE ? LANES / TILE : 1;

// A lane owns one quad of every SHARERS-th vector; or, where a head has more quads than the group has lanes, LANE_QUADS
// quads of every vector.
const uint SHARERS = LANES > HEAD_QUADS ? LANES / HEAD_QUADS : 1;
const uint LANE_QUADS = (HEAD_QUADS + LANES - 1) / LANES;
const uint OWN = (VECTORS + SHARERS - 1) / SHARERS;
const uint TILE_QUADS = OWN * LANE_QUADS * LANES + VECTORS;

// ABREAST neighbouring positions of a vector to a vec4. Rows are longer than a tile, so that they begin in other banks.
const uint ABREAST = 4;
const uint WEIGHT_QUADS = TILE / ABREAST;
const uint WEIGHT_STRIDE = WEIGHT_QUADS + 1;
shared vec4 weights[VECTORS * WEIGHT_STRIDE];
shared vec4 peaks[VECTORS];

float scores[TOGETHER][SCORED];

// The sum of weights and the weighted values of the tile, of the vectors that a lane owns.
float tile_total[OWN];
vec4 tile_values[OWN][LANE_QUADS];

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

// The quads that a lane owns, and the vector that it owns as its k-th; where there are lanes or turns left over, they do
// again what others do.
uint quad_of_lane(uint j) {
    uint lane = gl_LocalInvocationID.x;
    return SHARERS > 1 ? lane % HEAD_QUADS : min(j * LANES + lane, HEAD_QUADS - 1);
}

uint owned_vector(uint k) {
    uint sharer = SHARERS > 1 ? min(gl_LocalInvocationID.x / HEAD_QUADS, SHARERS - 1) : 0;
    return SHARERS > 1 ? min(sharer + k * SHARERS, VECTORS - 1) : k;
}

// Whether any row of the run has a vector that is not below `v`.
bool is_live(uint v) {
    return QUERY_ROWS == 1 || UNITS == 0 || v < run_rows * QUERIES;
}

// A quad of a query vector, times what scores are scaled by.
vec4 query_in_memory(uint v, uint quad) {
    precise float scale = push.scale * LOG2_E;
    uint row = first_row + min(v / QUERIES, run_rows - 1);
    uint head = first_head + min(v % QUERIES, GROUP - 1 - first_head % GROUP);
    precise vec4 q = push.q.value[row * (push.q_stride / 4) + head * HEAD_QUADS + quad] * scale;
    return q;
}

vec4 query(uint v, uint quad) {
    return HELD >= VECTORS ? heads[v * HEAD_QUADS + quad] : query_in_memory(v, quad);
}

void clear_scores() {
    [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
        [[unroll]] for (uint v = 0; v < SCORED; v++) {
            scores[i][v] = 0.0;
        }
    }
}

// Add the units [from, to) of TOGETHER positions of the tile, `first` and every LANES-th behind it, to the scores of the
// vectors from `vector` on.
void score_units(uint start, uint first, uint vector, uint from, uint to) {
    for (uint unit = from; unit < to; unit++) {
        uvec4 keys[TOGETHER];
        precise float sums[TOGETHER][SCORED];
        [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
            keys[i] = key_of(start, first + i * LANES, unit, from);
            [[unroll]] for (uint v = 0; v < SCORED; v++) {
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
            [[unroll]] for (uint v = 0; v < SCORED; v++) {
                if (is_live(vector + v)) {
                    vec4 q = query(min(vector + v, VECTORS - 1), unit * UNIT_QUADS + c);
                    [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
                        sums[i][v] = plus_products(sums[i][v], q, x[i]);
                    }
                }
            }
        }
        [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
#ifdef CODEC_SCALED
            float scale = key_scale_of(start, first + i * LANES, unit, from);
#endif
            [[unroll]] for (uint v = 0; v < SCORED; v++) {
#ifdef CODEC_SCALED
                scores[i][v] = plus_product(scores[i][v], scale, sums[i][v]);
#else
                scores[i][v] = sums[i][v];
#endif
            }
        }
    }
}

// Keep scores as weights to be; LOWEST where a row does not see a position.
void keep_scores(uint start, uint first, uint vector) {
    [[unroll]] for (uint v = 0; v < SCORED; v++) {
        if (vector + v < VECTORS) {
            uvec2 seen = visible(start, (vector + v) / QUERIES);
            [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
                uint p = first + i * LANES;
                bool is_seen = p >= seen.x && p < seen.y;
                weights[(vector + v) * WEIGHT_STRIDE + p / 4][p % 4] = is_seen ? scores[i][v] : LOWEST;
            }
        }
    }
}

float most_of_tile(uint v) {
    vec4 four = peaks[v];
    return max(max(four.x, four.y), max(four.z, four.w));
}

// Make weights of scores: 2 to the power of score less the vector's largest one; 0 where a row does not see a position.
void soften(uint start) {
    uvec2 seen = visible_to_run(start);
    uint from = seen.x / 4, to = (seen.y + 3) / 4;
    for (uint i = gl_LocalInvocationID.x; i < VECTORS * 4; i += LANES) {
        vec4 highest = vec4(LOWEST);
        for (uint quad = from + i % 4; quad < to; quad += 4) {
            highest = max(highest, weights[i / 4 * WEIGHT_STRIDE + quad]);
        }
        peaks[i / 4][i % 4] = max(max(highest.x, highest.y), max(highest.z, highest.w));
    }
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < VECTORS * WEIGHT_QUADS; i += LANES) {
        uint v = i / WEIGHT_QUADS, quad = i % WEIGHT_QUADS;
        if (quad >= from && quad < to) {
            vec4 four = weights[v * WEIGHT_STRIDE + quad];
            vec4 weight = mix(exp2(four - most_of_tile(v)), vec4(0.0), equal(four, vec4(LOWEST)));
            weights[v * WEIGHT_STRIDE + quad] = weight;
        }
    }
}

// The tile's weights.
void score(uint start) {
    uint lane = gl_LocalInvocationID.x;
    uvec2 seen = visible_to_run(start);
    if (UNITS > 0) {
        uint vector = TEAMS > 1 ? lane / TILE * SCORED : 0;
        clear_scores();
        [[dont_unroll]] for (uint first = 0; first < HEAD_UNITS; first += KEY_SPAN) {
            barrier();
            share_keys();
            barrier();
            if (first + KEY_SPAN < HEAD_UNITS) {
                ask_for_keys(start, first + KEY_SPAN);
            } else {
                ask_for_values(start, seen.x / VALUE_SPAN * VALUE_SPAN);
            }
            if (is_live(vector)) {
                score_units(start, lane % TILE, vector, first, min(first + KEY_SPAN, HEAD_UNITS));
            }
        }
        keep_scores(start, lane % TILE, vector);
    } else {
        const uint span = TOGETHER * LANES;
        barrier();
        read_value_scales(start);
        for (uint first = seen.x / span * span; first < seen.y; first += span) {
            clear_scores();
            score_units(start, first + lane, 0, 0, HEAD_UNITS);
            keep_scores(start, first + lane, 0);
        }
    }
    barrier();
    soften(start);
}

// A value as it is weighed. What is not finite is as large as can be: a weight of 0, which stands for a position that a
// row does not see, makes 0 of it all the same.
vec4 bounded(vec4 x) {
    return mix(vec4(-LOWEST), x, lessThanEqual(abs(x), vec4(-LOWEST)));
}

// Add the weighted values of the tile's positions [from, to), from the multiple of ABREAST below.
void weigh_some(uint start, uint from, uint to, uint first) {
    for (uint p = from / ABREAST * ABREAST; p < to; p += ABREAST) {
        vec4 x[ABREAST][LANE_QUADS];
        [[unroll]] for (uint b = 0; b < ABREAST; b++) {
            [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
                x[b][j] = bounded(value_of(start, p + b, quad_of_lane(j), first));
            }
        }
        [[unroll]] for (uint k = 0; k < OWN; k++) {
            if (is_live(k * SHARERS)) {
                vec4 four = weights[owned_vector(k) * WEIGHT_STRIDE + p / ABREAST];
                [[unroll]] for (uint b = 0; b < ABREAST; b++) {
                    precise float sum = tile_total[k] + four[b];
                    tile_total[k] = sum;
                    [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
                        tile_values[k][j] = plus_product(tile_values[k][j], four[b], x[b][j]);
                    }
                }
            }
        }
    }
}

// The tile's sum of weights and weighted values. goes_on: whether the next tile follows.
void weigh(uint start, bool goes_on) {
    [[unroll]] for (uint k = 0; k < OWN; k++) {
        tile_total[k] = 0.0;
        [[unroll]] for (uint j = 0; j < LANE_QUADS; j++) {
            tile_values[k][j] = vec4(0.0);
        }
    }
    uvec2 seen = visible_to_run(start);
    if (UNITS > 0) {
        [[dont_unroll]] for (uint first = seen.x / VALUE_SPAN * VALUE_SPAN; first < seen.y; first += VALUE_SPAN) {
            barrier();
            share_values();
            barrier();
            if (first + VALUE_SPAN < seen.y) {
                ask_for_values(start, first + VALUE_SPAN);
            } else if (goes_on) {
                ask_for_keys(start + TILE, 0);
            }
            weigh_some(start, max(first, seen.x), min(first + VALUE_SPAN, seen.y), first);
        }
    } else {
        barrier();
        weigh_some(start, seen.x, seen.y, 0);
    }
}

#endif
