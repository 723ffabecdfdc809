/* lanes.h: sixteen floats as one value, in the compiler's own vectors (GCC, Clang).
 *
 * Code written with them says which loop is the vector, and compiles for any machine: to four SSE
 * registers, two of AVX2 or one of AVX-512, by the flags of the file that includes it.
 */
#ifndef HK_LANES_H
#define HK_LANES_H

#include "internal.h"

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

typedef float hk_lanes __attribute__((vector_size(4 * HK_LANES)));
typedef int32_t hk_lanes_i32 __attribute__((vector_size(4 * HK_LANES)));
typedef int16_t hk_lanes_i16 __attribute__((vector_size(2 * HK_LANES)));
typedef uint16_t hk_lanes_u16 __attribute__((vector_size(2 * HK_LANES)));
typedef int8_t hk_lanes_i8 __attribute__((vector_size(HK_LANES)));

static inline hk_lanes lanes_load(const float *src)
{
    hk_lanes lanes;
    memcpy(&lanes, src, sizeof lanes);
    return lanes;
}

static inline void lanes_store(float *dst, hk_lanes lanes) { memcpy(dst, &lanes, sizeof lanes); }

/* The same bits, as integers or as floats. */
static inline hk_lanes_i32 lanes_bits(hk_lanes lanes)
{
    hk_lanes_i32 bits;
    memcpy(&bits, &lanes, sizeof bits);
    return bits;
}

static inline hk_lanes lanes_of_bits(hk_lanes_i32 bits)
{
    hk_lanes lanes;
    memcpy(&lanes, &bits, sizeof lanes);
    return lanes;
}

/* Where the mask is all ones, a; elsewhere b. */
static inline hk_lanes lanes_select(hk_lanes_i32 mask, hk_lanes a, hk_lanes b)
{
    return lanes_of_bits((lanes_bits(a) & mask) | (lanes_bits(b) & ~mask));
}

static inline hk_lanes lanes_abs(hk_lanes x) { return lanes_of_bits(lanes_bits(x) & 0x7fffffff); }
static inline hk_lanes lanes_max(hk_lanes a, hk_lanes b) { return lanes_select(a > b, a, b); }

/* x with its halves (quarters, ...) exchanged; what the trees below are made of. */
#define LANES_SWAP_8(x) __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define LANES_SWAP_4(x) __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define LANES_SWAP_2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define LANES_SWAP_1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)

/* The sum of all lanes, in one fixed tree: i and i + 8, then i and i + 4, ... */
static inline float lanes_sum(hk_lanes x)
{
    x += LANES_SWAP_8(x);
    x += LANES_SWAP_4(x);
    x += LANES_SWAP_2(x);
    x += LANES_SWAP_1(x);
    return x[0];
}

static inline int32_t lanes_sum_i32(hk_lanes_i32 x)
{
    x += LANES_SWAP_8(x);
    x += LANES_SWAP_4(x);
    x += LANES_SWAP_2(x);
    x += LANES_SWAP_1(x);
    return x[0];
}

static inline float lanes_most(hk_lanes x)
{
    x = lanes_max(x, LANES_SWAP_8(x));
    x = lanes_max(x, LANES_SWAP_4(x));
    x = lanes_max(x, LANES_SWAP_2(x));
    x = lanes_max(x, LANES_SWAP_1(x));
    return x[0];
}

/* The nearest integer, halves away from zero; |x| below 2^31. */
static inline hk_lanes_i32 lanes_round(hk_lanes x)
{
    const hk_lanes half = lanes_of_bits((lanes_bits(x) & INT32_MIN) | lanes_bits((hk_lanes){0} + 0.5f));
    return __builtin_convertvector(x + half, hk_lanes_i32);
}

/* Sixteen halves. */
static inline hk_lanes lanes_of_halves(const void *src)
{
#if defined(__AVX512F__)
    hk_lanes lanes;
    const __m512 wide = _mm512_cvtph_ps(_mm256_loadu_si256(src));
    memcpy(&lanes, &wide, sizeof lanes);
    return lanes;
#elif defined(__F16C__)
    const __m256 parts[2] = {_mm256_cvtph_ps(_mm_loadu_si128(src)),
                             _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)src + 1))};
    hk_lanes lanes;
    memcpy(&lanes, parts, sizeof lanes);
    return lanes;
#else
    /* hk_half_to_float, lane by lane. */
    hk_lanes_u16 halves;
    memcpy(&halves, src, sizeof halves);
    const hk_lanes_i32 bits = __builtin_convertvector(halves, hk_lanes_i32);
    const hk_lanes_i32 magnitude = (bits & 0x7fff) << 13;
    const hk_lanes_i32 special = (magnitude >= 0x0f800000) & 0x7f800000;
    const hk_lanes_i32 tiny = magnitude < 0x00800000;
    const hk_lanes_i32 subnormal = lanes_bits(lanes_of_bits(magnitude + 0x38800000) - 0x1p-14f);
    const hk_lanes_i32 normal = magnitude + 0x38000000;
    return lanes_of_bits((tiny & subnormal) | (~tiny & normal) | special | (bits & 0x8000) << 16);
#endif
}

static inline hk_lanes lanes_of_bytes(const int8_t *src)
{
    hk_lanes_i8 bytes;
    memcpy(&bytes, src, sizeof bytes);
    return __builtin_convertvector(__builtin_convertvector(bytes, hk_lanes_i32), hk_lanes);
}

/* hk_exp, lane by lane. */
static inline hk_lanes lanes_exp(hk_lanes x)
{
    const hk_lanes lowest = (hk_lanes){0} - 87.3f, highest = (hk_lanes){0} + 88.3f;
    const hk_lanes clamped = lanes_select(x > lowest, lanes_select(x < highest, x, highest), lowest);
    const hk_lanes_i32 n = lanes_round(clamped * 1.44269504f);
    const hk_lanes whole = __builtin_convertvector(n, hk_lanes);
    const hk_lanes r = (clamped - whole * 0.693359375f) + whole * 2.12194440e-4f;
    hk_lanes p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const hk_lanes power = p * lanes_of_bits((n + 127) << 23);
    return lanes_select(x >= lowest, power, lanes_select(x < lowest, (hk_lanes){0}, x));
}

#endif
