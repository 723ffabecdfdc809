/* matmul_avx2_lanes.h: matmuls over quantised layouts with 256-bit vectors, eight lanes at a time.
 *
 * Compiled twice: with MATMUL_VNNI a byte dot product is one instruction; without it pairs of products
 * are added in 16 bits, a few quads at a time, as many as cannot overflow. Both are exact, so both give
 * the same bits. Sums follow the order that hostkernels.h fixes.
 */
#include "internal.h"

#include <immintrin.h>

enum { QUADS = HK_BLOCK / 4, VECTOR = 64, NIBBLES = 4 * VECTOR, PAIRS = 2 * VECTOR, BITS = VECTOR, SCALES = 32,
       HALF_LANES = HK_LANES / 2 };

/* Eight lanes of a block of weights. Where a layout has one scale per row, only the first is used. */
typedef struct block {
    __m256i quad[QUADS];
    __m256 scale[2];
    __m256 min[2];
} block;

/* `side` is 0 for lanes 0 to 7, 1 for lanes 8 to 15. */
static inline __m256i load_side(const uint8_t *vector, int side)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(vector + 32 * side));
}

static inline __m256 load_halves(const uint8_t *src, int side)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + 16 * side)));
}

static inline void load_nibbles(const uint8_t *src, int side, __m256i quad[QUADS])
{
    const __m256i low = _mm256_set1_epi8(15);
    for (int v = 0; v < 4; v++) {
        const __m256i bytes = load_side(src + v * VECTOR, side);
        quad[v] = _mm256_and_si256(bytes, low);
        quad[v + 4] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low);
    }
}

/* The bits `mask` at `from` of every byte, moved to `to`. */
static inline __m256i move_bits(__m256i bytes, int from, int to, int mask)
{
    const __m256i moved
        = to >= from ? _mm256_slli_epi16(bytes, to - from) : _mm256_srli_epi16(bytes, from - to);
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)(mask << to)));
}

static inline __m256i pair_of(const uint8_t *src, int side, int quad, int to)
{
    return move_bits(load_side(src + quad / 4 * VECTOR, side), 2 * (quad % 4), to, 3);
}

static inline __m256i bit_of(const uint8_t *src, int side, int quad, int to)
{
    return move_bits(load_side(src, side), quad, to, 1);
}

static inline void load_q8(const uint8_t *src, int side, block *out)
{
    for (int q = 0; q < QUADS; q++) {
        out->quad[q] = load_side(src + q * VECTOR, side);
#if defined(MATMUL_VNNI)
        out->quad[q] = _mm256_xor_si256(out->quad[q], _mm256_set1_epi8((char)0x80));
#endif
    }
    out->scale[0] = load_halves(src + QUADS * VECTOR, side);
}

static inline void load_q4(const uint8_t *src, int side, block *out)
{
    load_nibbles(src, side, out->quad);
    out->scale[0] = load_halves(src + NIBBLES, side);
    out->min[0] = load_halves(src + NIBBLES + SCALES, side);
}

static inline void load_q5(const uint8_t *src, int side, block *out)
{
    load_nibbles(src, side, out->quad);
    for (int q = 0; q < QUADS; q++)
        out->quad[q] = _mm256_or_si256(out->quad[q], bit_of(src + NIBBLES, side, q, 4));
    out->scale[0] = load_halves(src + NIBBLES + BITS, side);
    out->min[0] = load_halves(src + NIBBLES + BITS + SCALES, side);
}

/* Minima that are -half scales. */
static inline void set_mins(block *out, float half)
{
    out->min[0] = _mm256_mul_ps(out->scale[0], _mm256_set1_ps(-half));
}

static inline void load_q4s(const uint8_t *src, int side, block *out)
{
    load_nibbles(src, side, out->quad);
    out->scale[0] = load_halves(src + NIBBLES, side);
    set_mins(out, 8.0f);
}

static inline void load_q5s(const uint8_t *src, int side, block *out)
{
    load_nibbles(src, side, out->quad);
    for (int q = 0; q < QUADS; q++)
        out->quad[q] = _mm256_or_si256(out->quad[q], bit_of(src + NIBBLES, side, q, 4));
    out->scale[0] = load_halves(src + NIBBLES + BITS, side);
    set_mins(out, 16.0f);
}

static inline void load_q6(const uint8_t *src, int side, block *out)
{
    load_nibbles(src, side, out->quad);
    for (int q = 0; q < QUADS; q++)
        out->quad[q] = _mm256_or_si256(out->quad[q], pair_of(src + NIBBLES, side, q, 4));
    out->scale[0] = load_halves(src + NIBBLES + PAIRS, side);
    out->scale[1] = load_halves(src + NIBBLES + PAIRS + SCALES, side);
}

static inline void load_q3(const uint8_t *src, int side, block *out)
{
    for (int q = 0; q < QUADS; q++)
        out->quad[q] = _mm256_or_si256(pair_of(src, side, q, 0), bit_of(src + PAIRS, side, q, 2));
    out->scale[0] = load_halves(src + PAIRS + BITS, side);
    out->scale[1] = load_halves(src + PAIRS + BITS + SCALES, side);
}

static inline void load_q2(const uint8_t *src, int side, block *out)
{
    for (int q = 0; q < QUADS; q++)
        out->quad[q] = pair_of(src, side, q, 0);
    for (int half = 0; half < 2; half++) {
        out->scale[half] = load_halves(src + PAIRS + half * SCALES, side);
        out->min[half] = load_halves(src + PAIRS + (2 + half) * SCALES, side);
    }
}

static inline __m256i broadcast_quad(const int8_t *x)
{
    int32_t quad;
    memcpy(&quad, x, sizeof quad);
    return _mm256_set1_epi32(quad);
}

#if defined(MATMUL_VNNI)

/* offset: what was added to the weights' bytes to make them unsigned. */
static inline __m256i dot_quads(const __m256i *w, const int8_t *x, int count, int together, int offset, float sum)
{
    (void)together;
    __m256i even = offset ? _mm256_set1_epi32(-offset * (int32_t)sum) : _mm256_setzero_si256();
    __m256i odd = _mm256_setzero_si256();
    for (int q = 0; q < count; q += 2) {
        even = _mm256_dpbusd_avx_epi32(even, w[q], broadcast_quad(x + 4 * q));
        odd = _mm256_dpbusd_avx_epi32(odd, w[q + 1], broadcast_quad(x + 4 * q + 4));
    }
    return _mm256_add_epi32(even, odd);
}

#else

/* together: quads whose products add up in 16 bits; 1 means signed bytes, as they are in the file. */
static inline __m256i dot_quads(const __m256i *w, const int8_t *x, int count, int together, int offset, float sum)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i dot = offset && together > 1 ? _mm256_set1_epi32(-offset * (int32_t)sum) : _mm256_setzero_si256();
    for (int q = 0; q < count; q += together) {
        __m256i pairs = _mm256_setzero_si256();
        for (int i = q; i < q + together; i++) {
            const __m256i quad = broadcast_quad(x + 4 * i);
            pairs = _mm256_add_epi16(pairs, together > 1
                                                ? _mm256_maddubs_epi16(w[i], quad)
                                                : _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]),
                                                                       _mm256_sign_epi8(quad, w[i])));
        }
        dot = _mm256_add_epi32(dot, _mm256_madd_epi16(pairs, ones));
    }
    return dot;
}

#endif

static inline __m256 term_of(const block *w, const int8_t *x, const hk_block_scale *scale, int halves,
                             int together, int offset, bool mins)
{
    __m256 term = _mm256_setzero_ps();
    for (int half = 0; half < halves; half++) {
        const int first = half * QUADS / halves;
        const float sum = halves == 1 ? scale->sum : scale->half[half];
        const __m256 dot = _mm256_cvtepi32_ps(
            dot_quads(w->quad + first, x + 4 * first, QUADS / halves, together, offset, sum));
        term = half == 0 ? _mm256_mul_ps(w->scale[0], dot) : _mm256_fmadd_ps(w->scale[half], dot, term);
        if (mins)
            term = _mm256_fmadd_ps(w->min[half], _mm256_set1_ps(sum), term);
    }
    return term;
}

typedef void (*load_block)(const uint8_t *src, int side, block *out);

/* The whole kernel; everything before `group` is a constant at each use. */
static inline __attribute__((always_inline)) void
matmul(load_block load, int bytes, int halves, int together, int offset, bool mins, const uint8_t *group,
       const hk_activations *act, int64_t first_row, int64_t rows, float *out, int64_t out_stride, int lanes)
{
    for (int64_t tile_row = 0; tile_row < rows; tile_row += HK_ROW_TILE)
        for (int side = 0; side < 2 && side * HALF_LANES < lanes; side++) {
            const int64_t tile_rows = hk_min(HK_ROW_TILE, rows - tile_row);
            __m256 total[HK_ROW_TILE], segment[HK_ROW_TILE];
            for (int64_t m = 0; m < tile_rows; m++)
                total[m] = _mm256_setzero_ps();
            for (int s = 0; s < HK_SEGMENTS; s++) {
                for (int64_t m = 0; m < tile_rows; m++)
                    segment[m] = _mm256_setzero_ps();
                const int64_t end = hk_segment_start(act->blocks, s + 1);
                for (int64_t at = hk_segment_start(act->blocks, s); at < end; at++) {
                    block w;
                    if (side == 0)
                        hk_prefetch(group + at * bytes + HK_AHEAD, bytes);
                    load(group + at * bytes, side, &w);
                    for (int64_t m = 0; m < tile_rows; m++) {
                        const int64_t i = (first_row + tile_row + m) * act->blocks + at;
                        const hk_block_scale *scale = &act->scale[i];
                        const __m256 term
                            = term_of(&w, act->q + i * HK_BLOCK, scale, halves, together, offset, mins);
                        segment[m] = _mm256_fmadd_ps(_mm256_set1_ps(scale->scale), term, segment[m]);
                    }
                }
                for (int64_t m = 0; m < tile_rows; m++)
                    total[m] = _mm256_add_ps(total[m], segment[m]);
            }
            const size_t count = (size_t)hk_min(HALF_LANES, lanes - side * HALF_LANES);
            for (int64_t m = 0; m < tile_rows; m++)
                memcpy(out + (tile_row + m) * out_stride + side * HALF_LANES, &total[m], count * sizeof(float));
        }
}

#define KERNEL(name, load, bytes, halves, together, offset, mins)                                          \
    static void matmul_##name(const uint8_t *group, const hk_activations *act, int64_t first_row,          \
                              int64_t rows, float *out, int64_t out_stride, int lanes)                     \
    {                                                                                                      \
        matmul(load, bytes, halves, together, offset, mins, group, act, first_row, rows, out, out_stride,  \
               lanes);                                                                                     \
    }

KERNEL(q8x16, load_q8, 544, 1, 1, 128, false)
KERNEL(q4x16, load_q4, 320, 1, 8, 0, true)
KERNEL(q5x16, load_q5, 384, 1, 4, 0, true)
KERNEL(q4sx16, load_q4s, 288, 1, 8, 0, true)
KERNEL(q5sx16, load_q5s, 352, 1, 4, 0, true)
KERNEL(q6x16, load_q6, 448, 2, 2, 32, false)
KERNEL(q3x16, load_q3, 256, 2, 4, 4, false)
KERNEL(q2x16, load_q2, 256, 2, 4, 0, true)

static void put_kernels(hk_kernels *kernels)
{
    kernels->matmul[HK_LAYOUT_Q8X16] = matmul_q8x16;
    kernels->matmul[HK_LAYOUT_Q4X16] = matmul_q4x16;
    kernels->matmul[HK_LAYOUT_Q5X16] = matmul_q5x16;
    kernels->matmul[HK_LAYOUT_Q4SX16] = matmul_q4sx16;
    kernels->matmul[HK_LAYOUT_Q5SX16] = matmul_q5sx16;
    kernels->matmul[HK_LAYOUT_Q6X16] = matmul_q6x16;
    kernels->matmul[HK_LAYOUT_Q3X16] = matmul_q3x16;
    kernels->matmul[HK_LAYOUT_Q2X16] = matmul_q2x16;
}
