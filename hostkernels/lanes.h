/* lanes.h: sixteen floats as one value, made of the machine's registers.
 *
 * Code written with them says which loop is the vector, and compiles for any machine: to four registers
 * of SSE or NEON, two of AVX2, one of AVX-512, by the flags of the file that includes it. A register is
 * a vector of the compiler (GCC, Clang); one wider than the machine's would be taken apart through memory.
 */
#ifndef HK_LANES_H
#define HK_LANES_H

#include "internal.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES_WIDTH 16
#elif defined(__AVX2__)
#define LANES_WIDTH 8
#else
#define LANES_WIDTH 4
#endif

enum { LANES_PARTS = HK_LANES / LANES_WIDTH };

typedef float hk_f32 __attribute__((vector_size(4 * LANES_WIDTH)));
typedef int32_t hk_i32 __attribute__((vector_size(4 * LANES_WIDTH)));
typedef uint16_t hk_u16 __attribute__((vector_size(2 * LANES_WIDTH)));
typedef int8_t hk_i8 __attribute__((vector_size(LANES_WIDTH)));
typedef uint8_t hk_u8 __attribute__((vector_size(LANES_WIDTH)));

typedef struct hk_lanes {
    hk_f32 part[LANES_PARTS];
} hk_lanes;

#define LANES_EACH(i) for (int i = 0; i < LANES_PARTS; i++)

/* Register by register: copied as a whole, a value would pass through memory. */
static inline hk_lanes lanes_load(const float *src)
{
    hk_lanes lanes;
    LANES_EACH(i) memcpy(&lanes.part[i], src + i * LANES_WIDTH, sizeof lanes.part[i]);
    return lanes;
}

static inline void lanes_store(float *dst, hk_lanes lanes)
{
    LANES_EACH(i) memcpy(dst + i * LANES_WIDTH, &lanes.part[i], sizeof lanes.part[i]);
}

static inline hk_lanes lanes_splat(float x)
{
    hk_lanes lanes;
    LANES_EACH(i) lanes.part[i] = x - (hk_f32){0}; /* x + 0 would cost a sum, for the sake of -0 */
    return lanes;
}

static inline hk_lanes lanes_zero(void) { return lanes_splat(0.0f); }

static inline hk_lanes lanes_add(hk_lanes a, hk_lanes b)
{
    LANES_EACH(i) a.part[i] += b.part[i];
    return a;
}

static inline hk_lanes lanes_mul(hk_lanes a, hk_lanes b)
{
    LANES_EACH(i) a.part[i] *= b.part[i];
    return a;
}

/* a * b + c; one rounding where the file's flags allow it. */
static inline hk_lanes lanes_mul_add(hk_lanes a, hk_lanes b, hk_lanes c)
{
    LANES_EACH(i) c.part[i] = a.part[i] * b.part[i] + c.part[i];
    return c;
}

/* ---- On one register ----------------------------------------------------------------------------- */

static inline hk_i32 bits_of(hk_f32 x)
{
    hk_i32 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline hk_f32 of_bits(hk_i32 bits)
{
    hk_f32 x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Where the mask is all ones, a; elsewhere b. */
static inline hk_f32 select_f32(hk_i32 mask, hk_f32 a, hk_f32 b)
{
    return of_bits((bits_of(a) & mask) | (bits_of(b) & ~mask));
}

static inline hk_f32 abs_f32(hk_f32 x) { return of_bits(bits_of(x) & 0x7fffffff); }
static inline hk_f32 max_f32(hk_f32 a, hk_f32 b) { return select_f32(a > b, a, b); }

/* The nearest integer, halves away from zero; |x| below 2^31. */
static inline hk_i32 round_f32(hk_f32 x)
{
    const hk_f32 half = of_bits((bits_of(x) & INT32_MIN) | bits_of((hk_f32){0} + 0.5f));
    return __builtin_convertvector(x + half, hk_i32);
}

/* hk_exp. */
static inline hk_f32 exp_f32(hk_f32 x)
{
    const hk_f32 lowest = (hk_f32){0} - 87.3f, highest = (hk_f32){0} + 88.3f;
    const hk_f32 clamped = select_f32(x > lowest, select_f32(x < highest, x, highest), lowest);
    const hk_i32 n = round_f32(clamped * 1.44269504f);
    const hk_f32 whole = __builtin_convertvector(n, hk_f32);
    const hk_f32 r = (clamped - whole * 0.693359375f) + whole * 2.12194440e-4f;
    hk_f32 p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const hk_f32 power = p * of_bits((n + 127) << 23);
    return select_f32(x >= lowest, power, select_f32(x < lowest, (hk_f32){0}, x));
}

/* A register with its halves (quarters, ...) exchanged; what the trees below are made of. */
#if LANES_WIDTH == 16
#define SWAP_8(x) __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define SWAP_4(x) __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define SWAP_2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define SWAP_1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif LANES_WIDTH == 8
#define SWAP_4(x) __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3)
#define SWAP_2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5)
#define SWAP_1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6)
#else
#define SWAP_2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1)
#define SWAP_1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2)
#endif

/* Fold sixteen values to one in one fixed tree: i and i + 8, then i and i + 4, ... */
#if LANES_WIDTH == 16
#define LANES_FOLD(type, parts, fold)                                                                      \
    type x = (parts)[0];                                                                                   \
    x = fold(x, SWAP_8(x));                                                                                \
    x = fold(x, SWAP_4(x));
#elif LANES_WIDTH == 8
#define LANES_FOLD(type, parts, fold)                                                                      \
    type x = fold((parts)[0], (parts)[1]);                                                                 \
    x = fold(x, SWAP_4(x));
#else
#define LANES_FOLD(type, parts, fold)                                                                      \
    type x = fold(fold((parts)[0], (parts)[2]), fold((parts)[1], (parts)[3]));
#endif

static inline hk_f32 add_f32(hk_f32 a, hk_f32 b) { return a + b; }
static inline hk_i32 add_i32(hk_i32 a, hk_i32 b) { return a + b; }

static inline float lanes_sum(hk_lanes lanes)
{
    LANES_FOLD(hk_f32, lanes.part, add_f32)
    x = x + SWAP_2(x);
    x = x + SWAP_1(x);
    return x[0];
}

static inline int32_t lanes_sum_i32(const hk_i32 part[LANES_PARTS])
{
    LANES_FOLD(hk_i32, part, add_i32)
    x = x + SWAP_2(x);
    x = x + SWAP_1(x);
    return x[0];
}

static inline float lanes_most(hk_lanes lanes)
{
    LANES_FOLD(hk_f32, lanes.part, max_f32)
    x = max_f32(x, SWAP_2(x));
    x = max_f32(x, SWAP_1(x));
    return x[0];
}

/* ---- On all lanes -------------------------------------------------------------------------------- */

static inline hk_lanes lanes_abs(hk_lanes x)
{
    LANES_EACH(i) x.part[i] = abs_f32(x.part[i]);
    return x;
}

static inline hk_lanes lanes_max(hk_lanes a, hk_lanes b)
{
    LANES_EACH(i) a.part[i] = max_f32(a.part[i], b.part[i]);
    return a;
}

static inline hk_lanes lanes_exp(hk_lanes x)
{
    LANES_EACH(i) x.part[i] = exp_f32(x.part[i]);
    return x;
}

/* Sixteen halves. */
static inline hk_lanes lanes_of_halves(const void *src)
{
    hk_lanes lanes;
#if defined(__AVX512F__)
    lanes.part[0] = (hk_f32)_mm512_cvtph_ps(_mm256_loadu_si256(src));
#elif defined(__F16C__)
    lanes.part[0] = (hk_f32)_mm256_cvtph_ps(_mm_loadu_si128(src));
    lanes.part[1] = (hk_f32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)src + 1));
#else
    /* hk_half_to_float. */
    LANES_EACH(i)
    {
        hk_u16 halves;
        memcpy(&halves, (const uint8_t *)src + i * sizeof halves, sizeof halves);
        const hk_i32 bits = __builtin_convertvector(halves, hk_i32);
        const hk_i32 magnitude = (bits & 0x7fff) << 13;
        const hk_i32 special = (magnitude >= 0x0f800000) & 0x7f800000;
        const hk_i32 tiny = magnitude < 0x00800000;
        const hk_i32 subnormal = bits_of(of_bits(magnitude + 0x38800000) - 0x1p-14f);
        const hk_i32 normal = magnitude + 0x38000000;
        lanes.part[i] = of_bits((tiny & subnormal) | (~tiny & normal) | special | (bits & 0x8000) << 16);
    }
#endif
    return lanes;
}

/* Sixteen bfloats. */
static inline hk_lanes lanes_of_bfloats(const uint8_t *src)
{
    hk_lanes lanes;
    LANES_EACH(i)
    {
        hk_u16 high;
        memcpy(&high, src + i * sizeof high, sizeof high);
        lanes.part[i] = of_bits(__builtin_convertvector(high, hk_i32) << 16);
    }
    return lanes;
}

/* Sixteen signed bytes. */
static inline hk_lanes lanes_of_bytes(const uint8_t *src)
{
    hk_lanes lanes;
#if defined(__AVX512F__)
    lanes.part[0] = (hk_f32)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)src)));
#elif defined(__AVX2__)
    LANES_EACH(i)
    lanes.part[i] = (hk_f32)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(src + i * LANES_WIDTH))));
#else
    LANES_EACH(i)
    {
        hk_i8 bytes;
        memcpy(&bytes, src + i * sizeof bytes, sizeof bytes);
        lanes.part[i] = __builtin_convertvector(__builtin_convertvector(bytes, hk_i32), hk_f32);
    }
#endif
    return lanes;
}

/* The levels that four bits of sixteen bytes, from bit `shift` on, stand for. */
static inline hk_lanes lanes_of_levels(const uint8_t *src, int shift, const int8_t levels[16])
{
    uint8_t looked_up[HK_LANES];
#if defined(__AVX2__)
    const __m128i nibbles = _mm_and_si128(_mm_srli_epi16(_mm_loadu_si128((const __m128i *)src), shift),
                                          _mm_set1_epi8(15));
    const __m128i found = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)levels), nibbles);
    memcpy(looked_up, &found, sizeof found);
#else
    for (int i = 0; i < HK_LANES; i++)
        looked_up[i] = (uint8_t)levels[src[i] >> shift & 15];
#endif
    return lanes_of_bytes(looked_up);
}

#endif
