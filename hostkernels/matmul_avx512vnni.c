/* matmul_avx512vnni.c: matmuls over packed layouts with 512-bit vectors and byte dot products.
 *
 * One vector holds one quad of columns of all 16 lanes, as the layouts keep it. A block's eight vectors
 * are unpacked once, to unsigned bytes, and stay in registers for every activation row of a tile; what
 * was added to make them unsigned is taken off again with the activations' sum, exactly. Sums follow
 * the order that hostkernels.h fixes.
 */
#include "internal.h"

#include <immintrin.h>

enum { QUADS = HK_BLOCK / 4, VECTOR = 64, NIBBLES = 4 * VECTOR, PAIRS = 2 * VECTOR, BITS = VECTOR, SCALES = 32 };

/* A block of weights in registers. Where a layout has one scale per row, only the first is used. */
typedef struct block {
    __m512i quad[QUADS];
    __m512 scale[2];
    __m512 min[2];
} block;

static inline __m512 load_halves(const uint8_t *src)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)src));
}

static inline void load_nibbles(const uint8_t *src, __m512i quad[QUADS])
{
    const __m512i low = _mm512_set1_epi8(15);
    for (int v = 0; v < 4; v++) {
        const __m512i bytes = _mm512_loadu_si512(src + v * VECTOR);
        quad[v] = _mm512_and_si512(bytes, low);
        quad[v + 4] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low);
    }
}

/* Bits 0 and 1 of each quad, moved up by `left`. */
static inline __m512i pair_of(const uint8_t *src, int quad, int left)
{
    const __m512i bytes = _mm512_loadu_si512(src + quad / 4 * VECTOR);
    const int shift = left - 2 * (quad % 4);
    const __m512i moved = shift >= 0 ? _mm512_slli_epi16(bytes, shift) : _mm512_srli_epi16(bytes, -shift);
    return _mm512_and_si512(moved, _mm512_set1_epi8((char)(3 << left)));
}

static inline __m512i bit_of(const uint8_t *src, int quad, int left)
{
    const __m512i bytes = _mm512_loadu_si512(src);
    const int shift = left - quad;
    const __m512i moved = shift >= 0 ? _mm512_slli_epi16(bytes, shift) : _mm512_srli_epi16(bytes, -shift);
    return _mm512_and_si512(moved, _mm512_set1_epi8((char)(1 << left)));
}

static inline void load_q8(const uint8_t *src, block *out)
{
    for (int q = 0; q < QUADS; q++)
        out->quad[q] = _mm512_xor_si512(_mm512_loadu_si512(src + q * VECTOR), _mm512_set1_epi8((char)0x80));
    out->scale[0] = load_halves(src + QUADS * VECTOR);
}

static inline void load_q4(const uint8_t *src, block *out)
{
    load_nibbles(src, out->quad);
    out->scale[0] = load_halves(src + NIBBLES);
    out->min[0] = load_halves(src + NIBBLES + SCALES);
}

static inline void load_q5(const uint8_t *src, block *out)
{
    load_nibbles(src, out->quad);
    for (int q = 0; q < QUADS; q++)
        out->quad[q] = _mm512_or_si512(out->quad[q], bit_of(src + NIBBLES, q, 4));
    out->scale[0] = load_halves(src + NIBBLES + BITS);
    out->min[0] = load_halves(src + NIBBLES + BITS + SCALES);
}

/* Minima that are -half scales. */
static inline void set_mins(block *out, float half)
{
    out->min[0] = _mm512_mul_ps(out->scale[0], _mm512_set1_ps(-half));
}

static inline void load_q4s(const uint8_t *src, block *out)
{
    load_nibbles(src, out->quad);
    out->scale[0] = load_halves(src + NIBBLES);
    set_mins(out, 8.0f);
}

static inline void load_q5s(const uint8_t *src, block *out)
{
    load_nibbles(src, out->quad);
    for (int q = 0; q < QUADS; q++)
        out->quad[q] = _mm512_or_si512(out->quad[q], bit_of(src + NIBBLES, q, 4));
    out->scale[0] = load_halves(src + NIBBLES + BITS);
    set_mins(out, 16.0f);
}

static inline void load_q6(const uint8_t *src, block *out)
{
    load_nibbles(src, out->quad);
    for (int q = 0; q < QUADS; q++)
        out->quad[q] = _mm512_or_si512(out->quad[q], pair_of(src + NIBBLES, q, 4));
    out->scale[0] = load_halves(src + NIBBLES + PAIRS);
    out->scale[1] = load_halves(src + NIBBLES + PAIRS + SCALES);
}

static inline void load_q3(const uint8_t *src, block *out)
{
    for (int q = 0; q < QUADS; q++)
        out->quad[q] = _mm512_or_si512(pair_of(src, q, 0), bit_of(src + PAIRS, q, 2));
    out->scale[0] = load_halves(src + PAIRS + BITS);
    out->scale[1] = load_halves(src + PAIRS + BITS + SCALES);
}

static inline void load_q2(const uint8_t *src, block *out)
{
    for (int q = 0; q < QUADS; q++)
        out->quad[q] = pair_of(src, q, 0);
    for (int half = 0; half < 2; half++) {
        out->scale[half] = load_halves(src + PAIRS + half * SCALES);
        out->min[half] = load_halves(src + PAIRS + (2 + half) * SCALES);
    }
}

/* The term of one activation row with a block; offset: what its quants were raised by. */
static inline __m512 term_of(const block *w, const int8_t *x, const hk_block_scale *scale, int halves, int offset,
                             bool mins)
{
    __m512 term = _mm512_setzero_ps();
    for (int half = 0; half < halves; half++) {
        const int first = half * QUADS / halves, count = QUADS / halves;
        const float total = halves == 1 ? scale->sum : scale->half[half];
        __m512i even = offset ? _mm512_set1_epi32(-offset * (int32_t)total) : _mm512_setzero_si512();
        __m512i odd = _mm512_setzero_si512();
        for (int q = first; q < first + count; q += 2) {
            int32_t a, b;
            memcpy(&a, x + 4 * q, 4);
            memcpy(&b, x + 4 * q + 4, 4);
            even = _mm512_dpbusd_epi32(even, w->quad[q], _mm512_set1_epi32(a));
            odd = _mm512_dpbusd_epi32(odd, w->quad[q + 1], _mm512_set1_epi32(b));
        }
        const __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
        if (half == 0)
            term = _mm512_mul_ps(w->scale[0], dot);
        else
            term = _mm512_fmadd_ps(w->scale[half], dot, term);
        if (mins)
            term = _mm512_fmadd_ps(w->min[half], _mm512_set1_ps(total), term);
    }
    return term;
}

static inline void store_lanes(float *out, __m512 values, int lanes)
{
    _mm512_mask_storeu_ps(out, (__mmask16)((1u << lanes) - 1), values);
}

/* The whole kernel; everything before `group` is a constant at each use. */
typedef void (*load_block)(const uint8_t *src, block *out);

static inline __attribute__((always_inline)) void
matmul(load_block load, int bytes, int halves, int offset, bool mins, const uint8_t *group,
       const hk_activations *act, int64_t first_row, int64_t rows, float *out, int64_t out_stride, int lanes)
{
    for (int64_t tile_row = 0; tile_row < rows; tile_row += HK_ROW_TILE) {
        const int64_t tile_rows = hk_min(HK_ROW_TILE, rows - tile_row);
        __m512 total[HK_ROW_TILE], segment[HK_ROW_TILE];
        for (int64_t m = 0; m < tile_rows; m++)
            total[m] = _mm512_setzero_ps();
        for (int s = 0; s < HK_SEGMENTS; s++) {
            for (int64_t m = 0; m < tile_rows; m++)
                segment[m] = _mm512_setzero_ps();
            const int64_t end = hk_segment_start(act->blocks, s + 1);
            for (int64_t at = hk_segment_start(act->blocks, s); at < end; at++) {
                block w;
                hk_prefetch(group + at * bytes + HK_AHEAD, bytes);
                load(group + at * bytes, &w);
                for (int64_t m = 0; m < tile_rows; m++) {
                    const int64_t i = (first_row + tile_row + m) * act->blocks + at;
                    const hk_block_scale *scale = &act->scale[i];
                    const __m512 term = term_of(&w, act->q + i * HK_BLOCK, scale, halves, offset, mins);
                    segment[m] = _mm512_fmadd_ps(_mm512_set1_ps(scale->scale), term, segment[m]);
                }
            }
            for (int64_t m = 0; m < tile_rows; m++)
                total[m] = _mm512_add_ps(total[m], segment[m]);
        }
        for (int64_t m = 0; m < tile_rows; m++)
            store_lanes(out + (tile_row + m) * out_stride, total[m], lanes);
    }
}

#define KERNEL(name, load, bytes, halves, offset, mins)                                                    \
    static void matmul_##name##_avx512vnni(const uint8_t *group, const hk_activations *act,                \
                                           int64_t first_row, int64_t rows, float *out,                    \
                                           int64_t out_stride, int lanes)                                  \
    {                                                                                                      \
        matmul(load, bytes, halves, offset, mins, group, act, first_row, rows, out, out_stride, lanes);    \
    }

KERNEL(q8x16, load_q8, 544, 1, 128, false)
KERNEL(q4x16, load_q4, 320, 1, 0, true)
KERNEL(q5x16, load_q5, 384, 1, 0, true)
KERNEL(q4sx16, load_q4s, 288, 1, 0, true)
KERNEL(q5sx16, load_q5s, 352, 1, 0, true)
KERNEL(q6x16, load_q6, 448, 2, 32, false)
KERNEL(q3x16, load_q3, 256, 2, 4, false)
KERNEL(q2x16, load_q2, 256, 2, 0, true)

void hk_matmul_avx512vnni(hk_kernels *kernels)
{
    kernels->matmul[HK_LAYOUT_Q8X16] = matmul_q8x16_avx512vnni;
    kernels->matmul[HK_LAYOUT_Q4X16] = matmul_q4x16_avx512vnni;
    kernels->matmul[HK_LAYOUT_Q5X16] = matmul_q5x16_avx512vnni;
    kernels->matmul[HK_LAYOUT_Q4SX16] = matmul_q4sx16_avx512vnni;
    kernels->matmul[HK_LAYOUT_Q5SX16] = matmul_q5sx16_avx512vnni;
    kernels->matmul[HK_LAYOUT_Q6X16] = matmul_q6x16_avx512vnni;
    kernels->matmul[HK_LAYOUT_Q3X16] = matmul_q3x16_avx512vnni;
    kernels->matmul[HK_LAYOUT_Q2X16] = matmul_q2x16_avx512vnni;
}
