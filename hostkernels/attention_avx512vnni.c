/* attention_avx512vnni.c: attention in 16-bit integers, two products and their sum at a time.
 *
 * Queries and keys are scaled to a length of 32767, whatever their size, so that a product of two is an exact
 * 32-bit integer (Cauchy-Schwarz); values to a greatest element of 32767. A position's scales are its own alone.
 * Its value's goes into its weight; the weights of a tile are then scaled to a sum of 32767, so that sums of
 * values are exact as well. Scores are in units of ln 2. Positions that a query does not see weigh 0.
 *
 * A key's pair is two columns, a value's two positions, 16 apart: vectors of weights make pairs as they are.
 */
#include "internal.h"

#include <immintrin.h>

enum {
    QUERIES = 4, /* that attend together, as many as registers hold */
    GROUPS = 2,  /* of them that take their turns */
    COLUMNS = 4, /* vectors of values that are summed at once */
    HALVES = HK_PAGE / HK_VALUE_ROWS
};

static const float LARGEST = 32767.0f;

/* The low 16 bits of both, side by side. */
static inline __m512i pair(__m512i low, __m512i high)
{
    return _mm512_mask_mov_epi16(low, 0xaaaaaaaa, _mm512_slli_epi32(high, 16));
}

/* sum + the products of a's and b's pairs. Not the intrinsic, for which GCC 12 copies each sum around. */
static inline __m512i add_products(__m512i sum, __m512i a, __m512i b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

/* 32767 / x, and 0 where that is no number. */
static inline __m512 inverse_of(__m512 x)
{
    return _mm512_maskz_div_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), _mm512_set1_ps(LARGEST), x);
}

/* What an integer stands for where x is scaled to 32767. */
static inline __m512 unit_of(__m512 x) { return _mm512_mul_ps(x, _mm512_set1_ps(1.0f / LARGEST)); }

/* 16 values, of halves or of floats. */
static inline __m512 load(const void *x, int64_t at, bool halves)
{
    return halves ? _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)((const uint16_t *)x + at)))
                  : _mm512_loadu_ps((const float *)x + at);
}

/* x * by, rounded, in the low 16 bits: a float from 2^23 to 2^24 has steps of 1. NaN becomes 0. */
static inline __m512i scaled(__m512 x, __m512 by)
{
    return _mm512_castps_si512(_mm512_fmadd_ps(x, by, _mm512_set1_ps(0x1.8p23f)));
}

/* 2^x: 2^n, n the whole part, times a polynomial of the rest, exact at both ends of [0, 1], with a relative error
 * below 4e-6 between them; 0 for -infinity, NaN for NaN. */
static inline __m512 power_of_two(__m512 x)
{
    const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(1.355575e-2f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.203237e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4137976e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9303212e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, x);
}

/* Fold each of four vectors to one value, all in the same tree; lane i of the result is that of vector i. */
#define FOLD(name, fold)                                                                                   \
    static inline __m128 name(const __m512 x[QUERIES])                                                     \
    {                                                                                                      \
        const __m512 ab = fold(_mm512_shuffle_f32x4(x[0], x[1], 0x44), _mm512_shuffle_f32x4(x[0], x[1], 0xee)); \
        const __m512 cd = fold(_mm512_shuffle_f32x4(x[2], x[3], 0x44), _mm512_shuffle_f32x4(x[2], x[3], 0xee)); \
        __m512 all = fold(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));         \
        all = fold(all, _mm512_shuffle_ps(all, all, 0x4e));                                                \
        all = fold(all, _mm512_shuffle_ps(all, all, 0xb1));                                                \
        const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);       \
        return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, all));                                  \
    }

FOLD(sums_of, _mm512_add_ps)
FOLD(greatest_of, _mm512_max_ps)

static inline __m512 greatest_magnitude(__m512 a, __m512 b) { return _mm512_range_ps(a, b, 11); }

/* ---- To integers --------------------------------------------------------------------------------- */

static void take_queries(const hk_queries *queries, float scale)
{
    const float factor = scale * 1.44269504f / LARGEST;
    for (int i = 0; i < queries->count; i++) {
        float *q = (float *)queries->q + i * queries->stride;
        __m512 squares = _mm512_setzero_ps();
        for (int64_t d = 0; d < queries->stride; d += HK_LANES) {
            const __m512 x = _mm512_loadu_ps(q + d);
            squares = _mm512_fmadd_ps(x, x, squares);
        }
        const __m512 length = _mm512_set1_ps(sqrtf(_mm512_reduce_add_ps(squares))), by = inverse_of(length);
        for (int64_t d = 0; d < queries->stride; d += HK_LANES) {
            const __m512i x = scaled(_mm512_loadu_ps(q + d), by);
            _mm256_storeu_si256((__m256i *)((int16_t *)q + d), _mm512_cvtepi32_epi16(x));
        }
        queries->scale[i] = _mm512_cvtss_f32(length) * factor;
    }
}

/* `halves`, what the source is, is a constant at each use. Keys are (pairs of columns, HK_STRIPS, HK_LANES). */
static inline __attribute__((always_inline)) void
narrow_keys(const hk_tile_rows *tile, int strip, const void *x, bool halves)
{
    enum { SUMS = 4 };
    const int64_t values = tile->stride * HK_LANES;
    __m512 squares[SUMS];
    for (int i = 0; i < SUMS; i++)
        squares[i] = _mm512_setzero_ps();
    for (int64_t at = 0; at < values; at += SUMS * HK_LANES)
        for (int i = 0; i < SUMS; i++) {
            const __m512 column = load(x, at + i * HK_LANES, halves);
            squares[i] = _mm512_fmadd_ps(column, column, squares[i]);
        }
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(squares[0], squares[1]), _mm512_add_ps(squares[2], squares[3]));
    const __m512 length = _mm512_sqrt_ps(sum), by = inverse_of(length);
    _mm512_storeu_ps(tile->scale + strip * HK_LANES, unit_of(length));
    int32_t *keys = (int32_t *)tile->keys + strip * HK_LANES;
    for (int64_t at = 0; at < values; at += 2 * HK_LANES, keys += HK_PAGE)
        _mm512_storeu_si512(keys, pair(scaled(load(x, at, halves), by), scaled(load(x, at + HK_LANES, halves), by)));
}

/* Values are (HALVES, HK_LANES, stride) pairs. */
static inline __attribute__((always_inline)) void
narrow_values(const hk_tile_rows *tile, int half, const void *x, bool halves)
{
    const int64_t stride = tile->stride;
    float *scale = tile->scale + HK_PAGE + half * HK_VALUE_ROWS, by[HK_VALUE_ROWS];
    for (int row = 0; row < HK_VALUE_ROWS; row += QUERIES) {
        __m512 greatest[QUERIES];
        for (int i = 0; i < QUERIES; i++) {
            greatest[i] = _mm512_setzero_ps();
            for (int64_t d = 0; d < stride; d += HK_LANES)
                greatest[i] = greatest_magnitude(greatest[i], load(x, (row + i) * stride + d, halves));
        }
        _mm_storeu_ps(by + row, greatest_of(greatest));
    }
    for (int row = 0; row < HK_VALUE_ROWS; row += HK_LANES) {
        const __m512 greatest = _mm512_loadu_ps(by + row);
        _mm512_storeu_ps(scale + row, unit_of(greatest));
        _mm512_storeu_ps(by + row, inverse_of(greatest));
    }
    int32_t *values = (int32_t *)tile->values + half * HK_LANES * stride;
    for (int p = 0; p < HK_LANES; p++, values += stride) {
        const __m512 by_low = _mm512_set1_ps(by[p]), by_high = _mm512_set1_ps(by[p + HK_LANES]);
        for (int64_t d = 0; d < stride; d += HK_LANES) {
            const __m512i low = scaled(load(x, p * stride + d, halves), by_low);
            const __m512i high = scaled(load(x, (p + HK_LANES) * stride + d, halves), by_high);
            _mm512_storeu_si512(values + d, pair(low, high));
        }
    }
}

static void read_floats(int codec, const uint8_t *keys, const uint8_t *values, int from, int to,
                        const hk_tile_rows *tile)
{
    const hk_kernels *kernels = hk_kernels_get();
    const int64_t row_bytes = hk_codec_bytes(codec, tile->head_size);
    for (int p = from / HK_LANES * HK_LANES; p < to; p += HK_LANES) {
        kernels->read_keys(codec, keys + p * row_bytes, tile->head_size, tile->strip);
        narrow_keys(tile, p / HK_LANES, tile->strip, false);
    }
    for (int p = from / HK_VALUE_ROWS * HK_VALUE_ROWS; p < to; p += HK_VALUE_ROWS) {
        kernels->read_values(codec, values + p * row_bytes, (int)hk_min(HK_VALUE_ROWS, to - p), tile->head_size,
                             tile->rows, tile->stride);
        narrow_values(tile, p / HK_VALUE_ROWS, tile->rows, false);
    }
}

static void read_halves(const uint8_t *keys, const uint8_t *values, int from, int to, const hk_tile_rows *tile)
{
    const int64_t row_bytes = hk_codec_bytes(HK_KV_F16, tile->head_size);
    for (int p = from / HK_LANES * HK_LANES; p < to; p += HK_LANES)
        narrow_keys(tile, p / HK_LANES, keys + p * row_bytes, true);
    for (int p = from / HK_VALUE_ROWS * HK_VALUE_ROWS; p < to; p += HK_VALUE_ROWS)
        narrow_values(tile, p / HK_VALUE_ROWS, values + p * row_bytes, true);
}

static void read_tile(int codec, const uint8_t *keys, const uint8_t *values, int from, int to,
                      const hk_tile_rows *tile)
{
    const int64_t row_bytes = hk_codec_bytes(codec, tile->head_size);
    const int first = from / HK_LANES * HK_LANES;
    /* Values come from memory while keys are read. */
    hk_prefetch(values + first * row_bytes, (int)((to - first) * row_bytes));
    if (codec == HK_KV_F16 && tile->stride == tile->head_size)
        read_halves(keys, values, from, to, tile);
    else
        read_floats(codec, keys, values, from, to, tile);
}

/* ---- A tile -------------------------------------------------------------------------------------- */

/* What becomes of queries that attend together. */
typedef struct group {
    float score[QUERIES][HK_PAGE]; /* but for the query's own scale; then weights */
    int32_t weight[QUERIES][HALVES][HK_LANES]; /* pairs of integers */
    __mmask16 seen[QUERIES][HK_STRIPS];
    float most[QUERIES];  /* the greatest score */
    float total[QUERIES]; /* of weights */
    float keep[QUERIES];  /* how much of the running values stays */
    float take[QUERIES];  /* and of the tile's is taken */
} group;

/* How much stays of what has `most` for its greatest score, as soon as `others` is one as well. */
static inline __m512 share_kept(__m512 most, __m512 others)
{
    return power_of_two(_mm512_min_ps(_mm512_sub_ps(most, others), _mm512_setzero_ps()));
}

/* The strip's positions that a query sees. */
static inline __mmask16 mask_of(hk_seen seen, int strip)
{
    const int from = seen.from - strip * HK_LANES, to = seen.to - strip * HK_LANES;
    const uint32_t below_to = to <= 0 ? 0 : to >= HK_LANES ? 0xffff : (1u << to) - 1;
    const uint32_t below_from = from <= 0 ? 0 : from >= HK_LANES ? 0xffff : (1u << from) - 1;
    return (__mmask16)(below_to & ~below_from);
}

static inline __attribute__((always_inline)) void
find_scores(int count, bool whole, const hk_queries *queries, int first, const hk_tile_rows *tile, group *at)
{
    const int64_t stride = tile->stride;
    const float *query = (const float *)queries->q + first * stride;
    __m512i dot[QUERIES][HK_STRIPS];
    for (int i = 0; i < count; i++)
        for (int s = 0; s < HK_STRIPS; s++)
            dot[i][s] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int64_t d = 0; d < stride / 2; d++) {
        __m512i key[HK_STRIPS];
        for (int s = 0; s < HK_STRIPS; s++)
            key[s] = _mm512_loadu_si512((const int32_t *)tile->keys + d * HK_PAGE + s * HK_LANES);
        for (int i = 0; i < count; i++) {
            int32_t two;
            memcpy(&two, query + i * stride + d, sizeof two);
            for (int s = 0; s < HK_STRIPS; s++)
                dot[i][s] = add_products(dot[i][s], key[s], _mm512_set1_epi32(two));
        }
    }

    __m512 greatest[QUERIES] = {_mm512_setzero_ps()};
    for (int i = 0; i < count; i++) {
        greatest[i] = _mm512_set1_ps(-INFINITY);
        for (int s = 0; s < HK_STRIPS; s++) {
            const __m512 unit = _mm512_loadu_ps(tile->scale + s * HK_LANES);
            const __m512 score = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[i][s]), unit);
            at->seen[i][s] = whole ? 0xffff : mask_of(queries->seen[first + i], s);
            greatest[i] = _mm512_mask_max_ps(greatest[i], whole ? 0xffff : at->seen[i][s], greatest[i], score);
            _mm512_storeu_ps(at->score[i] + s * HK_LANES, score);
        }
    }
    const __mmask8 present = (__mmask8)((1 << count) - 1);
    _mm_storeu_ps(at->most, _mm_mul_ps(greatest_of(greatest), _mm_maskz_loadu_ps(present, queries->scale + first)));
}

/* Turn scores to weights, and fold them into the running softmax. */
static inline __attribute__((always_inline)) void
find_weights(int count, bool whole, const hk_queries *queries, int first, const hk_tile_rows *tile, group *at)
{
    __m512 sum[QUERIES] = {_mm512_setzero_ps()}, total[QUERIES] = {_mm512_setzero_ps()};
    for (int i = 0; i < count; i++) {
        const __m512 scale = _mm512_set1_ps(queries->scale[first + i]), top = _mm512_set1_ps(at->most[i]);
        for (int s = 0; s < HK_STRIPS; s++) {
            float *score = at->score[i] + s * HK_LANES;
            const __mmask16 seen = whole ? 0xffff : at->seen[i][s];
            const __m512 power = power_of_two(_mm512_fmsub_ps(_mm512_loadu_ps(score), scale, top));
            const __m512 unit = _mm512_loadu_ps(tile->scale + HK_PAGE + s * HK_LANES);
            const __m512 weight = _mm512_maskz_mul_ps(seen, power, unit);
            sum[i] = _mm512_mask_add_ps(sum[i], seen, sum[i], power);
            total[i] = _mm512_add_ps(total[i], weight);
            _mm512_storeu_ps(score, weight);
        }
    }
    const __m128 totals = sums_of(total);
    _mm_storeu_ps(at->total, totals);

    const __mmask8 present = (__mmask8)((1 << count) - 1);
    const __m128 most = _mm_loadu_ps(at->most), before = _mm_maskz_loadu_ps(present, queries->most + first);
    const __m512 wide = _mm512_castps128_ps512(most), wide_before = _mm512_castps128_ps512(before);
    const __m128 keep = _mm512_castps512_ps128(share_kept(wide_before, wide));
    const __m128 take = _mm512_castps512_ps128(share_kept(wide, wide_before));
    const __m128 sum_before = _mm_maskz_loadu_ps(present, queries->sum + first);
    _mm_mask_storeu_ps(queries->most + first, present, _mm_max_ps(before, most));
    _mm_mask_storeu_ps(queries->sum + first, present, _mm_fmadd_ps(sum_before, keep, _mm_mul_ps(sums_of(sum), take)));
    _mm_storeu_ps(at->keep, keep);
    _mm_storeu_ps(at->take, _mm_mul_ps(take, _mm_mul_ps(totals, _mm_set1_ps(1.0f / LARGEST))));
}

static inline __attribute__((always_inline)) void narrow_weights(int count, group *at)
{
    float by[QUERIES];
    _mm_storeu_ps(by, _mm512_castps512_ps128(inverse_of(_mm512_castps128_ps512(_mm_loadu_ps(at->total)))));
    for (int i = 0; i < count; i++)
        for (int half = 0; half < HALVES; half++) {
            const float *weight = at->score[i] + half * HK_VALUE_ROWS;
            const __m512i low = scaled(_mm512_loadu_ps(weight), _mm512_set1_ps(by[i]));
            const __m512i high = scaled(_mm512_loadu_ps(weight + HK_LANES), _mm512_set1_ps(by[i]));
            _mm512_storeu_si512(at->weight[i][half], pair(low, high));
        }
}

/* out = out * keep + (weighted sum of values) * take, for `columns` vectors from column d on. */
static inline __attribute__((always_inline)) void
fold_values(int count, const hk_tile_rows *tile, const group *at, hk_seen seen, int64_t d, int columns, float *out)
{
    __m512i sum[QUERIES][COLUMNS];
    for (int i = 0; i < count; i++)
        for (int c = 0; c < columns; c++)
            sum[i][c] = _mm512_setzero_si512();
    for (int half = seen.from / HK_VALUE_ROWS; half * HK_VALUE_ROWS < seen.to; half++) {
        const int32_t *values = (const int32_t *)tile->values + half * HK_LANES * tile->stride + d;
        const int pairs = (int)hk_min(HK_LANES, seen.to - half * HK_VALUE_ROWS);
#pragma GCC unroll 8
        for (int p = 0; p < pairs; p++, values += tile->stride) {
            __m512i value[COLUMNS];
            for (int c = 0; c < columns; c++)
                value[c] = _mm512_loadu_si512(values + c * HK_LANES);
            for (int i = 0; i < count; i++)
                for (int c = 0; c < columns; c++)
                    sum[i][c] = add_products(sum[i][c], value[c], _mm512_set1_epi32(at->weight[i][half][p]));
        }
    }
    for (int i = 0; i < count; i++)
        for (int c = 0; c < columns; c++) {
            float *to = out + i * tile->stride + d + c * HK_LANES;
            const __m512 kept = _mm512_mul_ps(_mm512_loadu_ps(to), _mm512_set1_ps(at->keep[i]));
            _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i][c]), _mm512_set1_ps(at->take[i]), kept));
        }
}

/* `count`, of each of some groups, and `whole`, whether they see all of the tile, are constants at each use.
 * Queries share the loads of keys and values, nothing else. Each stage has work of one group to do while another's
 * is on its way. */
static inline __attribute__((always_inline)) void
attend_together(int groups, int count, bool whole, const hk_queries *queries, int first, const hk_tile_rows *tile)
{
    const int64_t stride = tile->stride;
    group group[GROUPS];
    for (int g = 0; g < groups; g++)
        find_scores(count, whole, queries, first + g * count, tile, &group[g]);
    for (int g = 0; g < groups; g++)
        find_weights(count, whole, queries, first + g * count, tile, &group[g]);
    for (int g = 0; g < groups; g++)
        narrow_weights(count, &group[g]);

    for (int g = 0; g < groups; g++) {
        const int from = first + g * count;
        /* Where some of them see nothing they have weights of 0. */
        const hk_seen seen =
            whole ? (hk_seen){0, HK_PAGE} : (hk_seen){queries->seen[from].from, queries->seen[from + count - 1].to};
        float *out = queries->out + from * stride;
        int64_t d = 0;
        for (; d + COLUMNS * HK_LANES <= stride; d += COLUMNS * HK_LANES)
            fold_values(count, tile, &group[g], seen, d, COLUMNS, out);
        for (; d < stride; d += HK_LANES)
            fold_values(count, tile, &group[g], seen, d, 1, out);
    }
}

static inline __attribute__((always_inline)) void
attend_all(bool whole, const hk_queries *queries, const hk_tile_rows *tile)
{
    int i = 0;
    for (; i + GROUPS * QUERIES <= queries->count; i += GROUPS * QUERIES)
        attend_together(GROUPS, QUERIES, whole, queries, i, tile);
    for (; i + QUERIES <= queries->count; i += QUERIES)
        attend_together(1, QUERIES, whole, queries, i, tile);
    switch (queries->count - i) {
    case 3: attend_together(1, 3, whole, queries, i, tile); break;
    case 2: attend_together(1, 2, whole, queries, i, tile); break;
    case 1: attend_together(1, 1, whole, queries, i, tile); break;
    }
}

static void attend(const hk_queries *queries, const hk_tile_rows *tile)
{
    if (queries->seen[0].to == HK_PAGE && queries->seen[queries->count - 1].from == 0)
        attend_all(true, queries, tile);
    else
        attend_all(false, queries, tile);
}

static void join(const hk_queries *queries, const hk_queries *others)
{
    for (int first = 0; first < queries->count; first += HK_LANES) {
        const int count = (int)hk_min(HK_LANES, queries->count - first);
        const __mmask16 present = (__mmask16)((1u << count) - 1);
        const __m512 most = _mm512_maskz_loadu_ps(present, queries->most + first);
        const __m512 sum = _mm512_maskz_loadu_ps(present, queries->sum + first);
        const __m512 other_most = _mm512_maskz_loadu_ps(present, others->most + first);
        const __m512 other_sum = _mm512_maskz_loadu_ps(present, others->sum + first);
        const __mmask16 there = _mm512_mask_cmp_ps_mask(present, other_sum, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        const __m512 keep = share_kept(most, other_most), take = share_kept(other_most, most);
        _mm512_mask_storeu_ps(queries->sum + first, there,
                              _mm512_fmadd_ps(sum, keep, _mm512_mul_ps(other_sum, take)));
        _mm512_mask_storeu_ps(queries->most + first, there, _mm512_max_ps(most, other_most));

        float kept[HK_LANES], taken[HK_LANES];
        _mm512_storeu_ps(kept, keep);
        _mm512_storeu_ps(taken, take);
        for (int i = 0; i < count; i++)
            for (int64_t d = 0; (there >> i & 1) && d < queries->stride; d += HK_LANES) {
                float *out = queries->out + (first + i) * queries->stride + d;
                const __m512 other = _mm512_loadu_ps(others->out + (first + i) * queries->stride + d);
                const __m512 before = _mm512_mul_ps(_mm512_loadu_ps(out), _mm512_set1_ps(kept[i]));
                _mm512_storeu_ps(out, _mm512_fmadd_ps(other, _mm512_set1_ps(taken[i]), before));
            }
    }
}

static const hk_attention_form integers = {take_queries, read_tile, attend, join};

void hk_attention_avx512vnni(hk_kernels *kernels)
{
    kernels->attention[HK_KV_F16] = kernels->attention[HK_KV_Q8_0] = &integers;
}
