/* internal.h: what the kernel files share. Not part of the ABI.
 *
 * A step runs on every thread of the pool at once: each thread walks all ops and does its share of
 * each. So every op kernel takes (part, parts) or an index range, and none allocates.
 */
#define _GNU_SOURCE /* posix_memalign, MAP_ANONYMOUS, MAP_NORESERVE under -std=c11 */

#ifndef HK_INTERNAL_H
#define HK_INTERNAL_H

#include "hostkernels.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum {
    HK_HALF = HK_BLOCK / 2,  /* finest grain of a weight scale */
    HK_SUPER = 256,          /* values of one K-quant block */
    HK_ROW_TILE = 32,        /* activation rows that share one decoded block of weights */
    HK_QUERY_TILE = 64,      /* query rows that share one decoded tile of K and V, at most */
    HK_STRIPS = HK_PAGE / HK_LANES, /* runs of 16 positions in a tile */
    HK_VALUE_ROWS = 2 * HK_LANES,   /* values that are decoded before any is used */
    HK_KV_CODECS = HK_KV_TQ4 + 1
};

static inline int64_t hk_round_up(int64_t value, int64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static inline int64_t hk_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t hk_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* How far ahead of the block at work weights are asked for: far enough for the memory's latency, near enough
 * to stay in the first-level cache. The next group follows the last block, so that it is asked for as well. */
enum { HK_AHEAD = 4096 };

static inline void hk_prefetch(const uint8_t *src, int bytes)
{
    for (int line = 0; line < bytes; line += 64)
        __builtin_prefetch(src + line);
}

/* The contiguous share [*first, *last) of `count` items that falls to one of `parts`. */
static inline void hk_share(int64_t count, int part, int parts, int64_t *first, int64_t *last)
{
    *first = count * part / parts;
    *last = count * (part + 1) / parts;
}

/* ---- Half floats (IEEE 754 binary16), bit-exact, nearest even --------------------------------- */

static inline uint32_t hk_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float hk_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Normal halves get their exponent's bias changed; subnormal ones are built as 2^-14 + value, less 2^-14,
 * which keeps floats normal, since machines are slow on others; infinities and NaN get the full exponent.
 * No branch: loops stay vectorised. */
static inline float hk_half_to_float(uint16_t half)
{
    const uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t special = (uint32_t)-(magnitude >= 0x0f800000u) & 0x7f800000u;
    const uint32_t tiny = (uint32_t)-(magnitude < 0x00800000u);
    const uint32_t subnormal = hk_bits_of(hk_float_of(magnitude + 0x38800000u) - 0x1p-14f);
    return hk_float_of((tiny & subnormal) | (~tiny & (magnitude + 0x38000000u)) | special | sign);
}

static inline uint16_t hk_float_to_half(float value)
{
    const uint32_t bits = hk_bits_of(value);
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00;
    } else if (magnitude >= 0x47800000u) {
        half = 0x7c00; /* 65536 and up; the rounding below carries 65520 and up to infinity as well */
    } else if (magnitude >= 0x38800000u) {
        const uint32_t odd = magnitude >> 13 & 1;
        half = (magnitude - 0x38000000u + 0xfff + odd) >> 13;
    } else {
        /* Adding 0.5 leaves a sum whose last mantissa bit weighs 2^-24, a half's smallest step. */
        half = hk_bits_of(hk_float_of(magnitude) + 0.5f) - 0x3f000000u;
    }
    return (uint16_t)(sign | half);
}

static inline float hk_bfloat_to_float(uint16_t value) { return hk_float_of((uint32_t)value << 16); }

/* e^r for |r| of at most ln 2 / 2: the Taylor series in Horner form. */
static inline float hk_exp_series(float r)
{
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p;
}

/* e^x, relative error below 2e-7; 0 under -87.3, clamped above 88.3, NaN for NaN. The argument is reduced by
 * multiples of ln 2 in two parts (Cody and Waite, 1980), the rest is a Taylor series in Horner form. */
static inline float hk_exp(float x)
{
    const float clamped = x > -87.3f ? (x < 88.3f ? x : 88.3f) : -87.3f;
    const float scaled = clamped * 1.44269504f;
    const int32_t n = (int32_t)(scaled + (scaled < 0.0f ? -0.5f : 0.5f));
    const float whole = (float)n;
    const float r = (clamped - whole * 0.693359375f) + whole * 2.12194440e-4f;
    const float p = hk_exp_series(r);
    const float power = hk_float_of((uint32_t)(n + 127) << 23);
    return x >= -87.3f ? p * power : (x < -87.3f ? 0.0f : x);
}

/* ---- Formats ---------------------------------------------------------------------------------- */

/* Up to 256 quantised values in file order; value i is scale[i / 16] * q[i] + min[i / 16]. */
typedef struct hk_values {
    int8_t q[HK_SUPER];
    float scale[HK_SUPER / HK_HALF];
    float min[HK_SUPER / HK_HALF];
} hk_values;

typedef struct hk_format_info {
    int32_t elements; /* values of one block */
    int32_t bytes;    /* bytes of one block */
    int32_t layout;
    void (*read)(const uint8_t *block, hk_values *out); /* NULL for float formats */
} hk_format_info;

const hk_format_info *hk_format_find(int format);

/* One value of a float format. */
float hk_read_float(int format, const uint8_t *src, int64_t index);

/* ---- Packed layouts --------------------------------------------------------------------------- */

/* One block of a group: HK_LANES rows of HK_BLOCK columns, decoded. Quants are column-major, so that a
 * column meets one activation. */
typedef struct hk_tile {
    _Alignas(64) int16_t q[HK_BLOCK][HK_LANES];
    _Alignas(64) float scale[2][HK_LANES]; /* second half used by layouts with a scale per 16 */
    _Alignas(64) float min[2][HK_LANES];
} hk_tile;

/* The same rows as they come from a file, for packing; rows past the matrix are zero. */
typedef struct hk_source_tile {
    int8_t q[HK_LANES][HK_BLOCK];
    float scale[HK_LANES][2];
    float min[HK_LANES][2];
} hk_source_tile;

typedef struct hk_layout_info {
    const char *name;
    int32_t bytes;  /* of one block */
    int32_t scales; /* per row of a block: 1, 2 (one per 16 columns), or 0 for float layouts */
    void (*encode)(const hk_source_tile *src, uint8_t *dst);
    void (*decode)(const uint8_t *src, hk_tile *dst);
    /* Float layouts: */
    void (*encode_float)(const float src[HK_LANES][HK_BLOCK], uint8_t *dst);
    void (*decode_float)(const uint8_t *src, float dst[HK_BLOCK][HK_LANES]);
} hk_layout_info;

extern const hk_layout_info hk_layout_table[HK_LAYOUTS];

static inline int64_t hk_blocks(int64_t columns) { return (columns + HK_BLOCK - 1) / HK_BLOCK; }
static inline int64_t hk_groups(int64_t rows) { return (rows + HK_LANES - 1) / HK_LANES; }

/* The first block of segment s. */
static inline int64_t hk_segment_start(int64_t blocks, int s) { return blocks * s / HK_SEGMENTS; }

/* ---- Activations ------------------------------------------------------------------------------ */

/* What belongs to one quantised block of activations, together so that it is one load away. */
typedef struct hk_block_scale {
    float scale;
    float sum;     /* of the quantised values, exact */
    float half[2]; /* the same over each half */
} hk_block_scale;

/* Rows of activations as a matmul reads them. */
typedef struct hk_activations {
    int64_t blocks;              /* per row */
    const int8_t *q;             /* quantised: (rows, blocks * HK_BLOCK) */
    const hk_block_scale *scale; /* quantised: (rows, blocks) */
    const float *x;              /* float: (rows, x_stride), zero past the columns up to a whole block */
    int64_t x_stride;
} hk_activations;

/* ---- Kernels, chosen once ---------------------------------------------------------------------- */

/* out[m * out_stride + lane] for `rows` rows and the first `lanes` rows of one packed group. */
typedef void (*hk_matmul_kernel)(const uint8_t *group, const hk_activations *act, int64_t first_row,
                                 int64_t rows, float *out, int64_t out_stride, int lanes);

/* ---- Attention: what a level computes with ------------------------------------------------------ */

/* One tile of HK_PAGE positions of one K/V head, decoded to a form's own values. The sizes are those of floats. */
typedef struct hk_tile_rows {
    void *keys;     /* HK_PAGE * stride, 16 positions side by side */
    void *values;   /* HK_PAGE * stride */
    float *scale;   /* (2, HK_PAGE) of keys and values that are integers */
    float *strip;   /* (stride, HK_LANES) keys on their way, and (HK_VALUE_ROWS, stride) values */
    float *rows;
    int64_t stride; /* head_size rounded up to HK_LANES; all is zero past head_size */
    int head_size;
} hk_tile_rows;

/* The positions [from, to) of a tile that a query sees. */
typedef struct hk_seen {
    int from;
    int to;
} hk_seen;

/* Query heads that share a K/V head, and what each has gathered from the tiles it has seen. */
typedef struct hk_queries {
    void *q;       /* (count, stride) floats, or a form's own values, as far apart; zero past head_size */
    float *scale;  /* (count) of scores */
    hk_seen *seen; /* (count) at least one position each; neither end falls from query to query */
    float *most;   /* (count) the running softmax: the greatest score, the sum of weights */
    float *sum;
    float *out;    /* (count, stride) the weighted sum of values */
    int count;
    int64_t stride;
} hk_queries;

/* How a level attends, in one form of numbers. */
typedef struct hk_attention_form {
    /* Turn floats `q`, whose scores are to be multiplied by `scale`, to the form's values in place. */
    void (*take_queries)(const hk_queries *queries, float scale);
    /* Read positions [from, to) of a page; what lies around them in a tile is of no account. */
    void (*read_tile)(int codec, const uint8_t *keys, const uint8_t *values, int from, int to,
                      const hk_tile_rows *tile);
    /* Fold the tile into each query's running softmax. A query's result is what it would be alone. */
    void (*attend)(const hk_queries *queries, const hk_tile_rows *tile);
    /* Join what the same queries have gathered elsewhere, if anything. */
    void (*join)(const hk_queries *queries, const hk_queries *others);
} hk_attention_form;

typedef struct hk_kernels {
    const char *level;
    hk_matmul_kernel matmul[HK_LAYOUTS];
    /* Quantise `blocks` blocks of 32 floats. */
    void (*quantise)(const float *x, int64_t blocks, int8_t *q, hk_block_scale *scale);
    void (*norm)(const float *x, const float *weight, int64_t width, float eps, float *out);
    /* count is a multiple of HK_LANES. */
    void (*gate)(int activation, const float *gate, const float *up, int64_t count, float *out);
    void (*add)(const float *a, const float *b, int64_t count, float *out);
    /* table: cosines of all pairs, then their sines. */
    void (*rope)(float *head, const float *table, int pairs, bool interleaved);
    /* A strip of 16 stored keys -> (head_size, HK_LANES); stored rows of values -> floats, `stride` apart. */
    void (*read_keys)(int codec, const uint8_t *strip, int head_size, float *dst);
    void (*read_values)(int codec, const uint8_t *rows, int count, int head_size, float *dst, int64_t stride);
    const hk_attention_form *attention[HK_KV_CODECS];
} hk_kernels;

/* The kernels of this process; filled at the first call from the portable floor up. */
const hk_kernels *hk_kernels_get(void);
void hk_ops_portable(hk_kernels *kernels);
void hk_matmul_portable(hk_kernels *kernels);
#if defined(HK_X86)
void hk_ops_avx2(hk_kernels *kernels);
void hk_matmul_avx2(hk_kernels *kernels);
void hk_matmul_avxvnni(hk_kernels *kernels);
void hk_ops_avx512vnni(hk_kernels *kernels);
void hk_matmul_avx512vnni(hk_kernels *kernels);
void hk_attention_avx512vnni(hk_kernels *kernels);
#endif

/* ---- Codecs over rows in the codec's own basis -------------------------------------------------- */

/* tq4's sixteen levels. */
extern const int8_t hk_tq4_levels[16];

/* Undoes hk_codec_rotate. */
void hk_codec_unrotate(int codec, float *head, int64_t head_size);
/* Decode without the change of basis. */
void hk_codec_read(int codec, const void *src, int64_t head_size, float *dst);

/* Keys of 16 positions lie side by side in a strip: the unit (value, or a block's scale) at offset o of
 * a row, s bytes long, is at 16 * o + position * s. So a vector loads one unit of 16 positions. */
void hk_strip_put(int codec, const uint8_t *row, int64_t head_size, int position, uint8_t *strip);
void hk_strip_get(int codec, const uint8_t *strip, int64_t head_size, int position, uint8_t *row);
/* Copy the first `positions` positions of a strip. */
void hk_strip_copy(int codec, const uint8_t *from, int64_t head_size, int positions, uint8_t *to);

/* ---- Threads ----------------------------------------------------------------------------------- */

typedef void (*hk_task)(void *context, int part, int parts);

/* Run the task on every thread of the pool and return when all have finished. One caller at a time. */
void hk_pool_run(hk_pool *pool, hk_task task, void *context);

/* Wait, inside a task, until every thread of the pool has come here. */
void hk_pool_barrier(hk_pool *pool);

#endif
