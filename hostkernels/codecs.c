/* codecs.c: how rows of K and V are kept.
 *
 *   f32, f16  as they are, f16 rounded to nearest even
 *   q8_0      rotated by blocks of 32; then per block: f16 scale = max|x| / 127, 32 signed bytes (the form of
 *             GGML's Q8_0)
 *   tq4       keys times a fixed scale; rotated over the whole head; then per 32 values: f16 scale, 16 bytes of
 *             nibbles (placed as in GGML's Q4_0), value = scale * level[nibble]
 *
 * Rotating multiplies by a fixed vector of signs and by the orthonormal Walsh-Hadamard transform, which
 * spreads outliers, of which keys have many, over all values. The rotation R is orthonormal, so
 * q.k = (Rq).(Rk): attention stays in the rotated basis, with the query rotated once and the output
 * rotated back once per head.
 *
 * tq4, exactly. x = R(s * k) for a key, Rv for a value; queries become R(q / s), so s costs nothing. From the last
 * block to the first:
 *   1. the block's scale is the one of half(max|x| / 127 * f), f of `fits`, that comes nearest to the block: least
 *      sum of (x - scale * level)^2 with the level nearest to x / scale, the first on a tie; half rounds to f16,
 *      and the sum adds value i and i + 16, then i and i + 8, and so on;
 *   2. from its last value i to its first: the nibble is the number of `edges` that x_i / scale is not below;
 *      of a key, its error e = x_i - scale * level is made up for by what is yet to come: x_j += feedback_ij * e,
 *      j < i.
 * Row i of `feedback` has i floats; the rows follow each other. Division by a scale is multiplication by its
 * rounded inverse, or by 0 where it is 0.
 */
#include "internal.h"

enum { Q8_0_BYTES = 34, TQ4_BYTES = 18, TQ4_EDGES = 15, TQ4_FITS = 5 };

/* Where a normally distributed value is best represented (Lloyd, "Least squares quantization in PCM", 1982), in
 * whole 127ths of the outermost level. */
const int8_t hk_tq4_levels[16] = {-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127};
/* Half-way between the levels. */
static const float edges[TQ4_EDGES] = {-111.5f, -85.5f, -66.5f, -51.0f, -37.5f, -24.5f, -12.0f, 0.0f,
                                       12.0f,   24.5f,  37.5f,  51.0f,  66.5f,  85.5f,  111.5f};
static const float fits[TQ4_FITS] = {0.75f, 0.825f, 0.9f, 0.975f, 1.05f};

int64_t hk_codec_bytes(int codec, int64_t head_size)
{
    switch (codec) {
    case HK_KV_F32: return 4 * head_size;
    case HK_KV_F16: return 2 * head_size;
    case HK_KV_Q8_0: return head_size / HK_BLOCK * Q8_0_BYTES;
    default: return head_size / HK_BLOCK * TQ4_BYTES;
    }
}

/* The sign of value i: a bit of a Weyl sequence's mixed high half (golden-ratio step, one xor-shift
 * multiply), so that any head size has a fixed vector without structure that a transform could align with. */
static float sign_of(int64_t i)
{
    uint32_t h = (uint32_t)(i + 1) * 0x9e3779b9u;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    return h >> 31 ? -1.0f : 1.0f;
}

/* In place, orthonormal; its own inverse. */
static void hadamard(float *x, int64_t size)
{
    for (int64_t step = 1; step < size; step *= 2)
        for (int64_t i = 0; i < size; i += 2 * step)
            for (int64_t j = i; j < i + step; j++) {
                const float a = x[j], b = x[j + step];
                x[j] = a + b;
                x[j + step] = a - b;
            }
    const float scale = 1.0f / sqrtf((float)size);
    for (int64_t i = 0; i < size; i++)
        x[i] *= scale;
}

static void apply_signs(float *x, int64_t size)
{
    for (int64_t i = 0; i < size; i++)
        x[i] *= sign_of(i);
}

/* Values that are rotated together; 0 where a codec does not rotate. */
static int64_t rotated_size(int codec, int64_t head_size)
{
    return codec == HK_KV_TQ4 ? head_size : (codec == HK_KV_Q8_0 ? HK_BLOCK : 0);
}

void hk_codec_rotate(int codec, float *head, int64_t head_size)
{
    const int64_t size = rotated_size(codec, head_size);
    if (size == 0)
        return;
    apply_signs(head, head_size);
    for (int64_t at = 0; at < head_size; at += size)
        hadamard(head + at, size);
}

void hk_codec_unrotate(int codec, float *head, int64_t head_size)
{
    const int64_t size = rotated_size(codec, head_size);
    if (size == 0)
        return;
    for (int64_t at = 0; at < head_size; at += size)
        hadamard(head + at, size);
    apply_signs(head, head_size);
}

static float scale_at(const uint8_t *src)
{
    uint16_t bits;
    memcpy(&bits, src, sizeof bits);
    return hk_half_to_float(bits);
}

/* The scale as it will be read back, and its inverse: what is divided by one and multiplied by another
 * would be off by the rounding of a half. */
static float put_scale(float scale, uint8_t *dst)
{
    const uint16_t bits = hk_float_to_half(scale);
    memcpy(dst, &bits, sizeof bits);
    const float stored = hk_half_to_float(bits);
    return stored != 0.0f ? 1.0f / stored : 0.0f;
}

static float clamp(float value, float low, float high) { return fmaxf(low, fminf(high, value)); }

static void write_q8_0(const float *x, uint8_t *dst)
{
    float most = 0.0f;
    for (int i = 0; i < HK_BLOCK; i++)
        most = fmaxf(most, fabsf(x[i]));
    const float inverse = put_scale(most / 127.0f, dst);
    for (int i = 0; i < HK_BLOCK; i++)
        dst[2 + i] = (uint8_t)(int8_t)clamp(roundf(x[i] * inverse), -127.0f, 127.0f);
}

static int tq4_nibble(float x)
{
    int nibble = 0;
    for (int i = 0; i < TQ4_EDGES; i++)
        nibble += x >= edges[i];
    return nibble;
}

/* Sum of squared errors of a block at a scale. */
static float tq4_distance(const float *x, float scale, float inverse)
{
    float square[HK_BLOCK];
    for (int i = 0; i < HK_BLOCK; i++) {
        const float at = x[i] * inverse;
        float level = hk_tq4_levels[0];
        for (int edge = 0; edge < TQ4_EDGES; edge++)
            level += at >= edges[edge] ? (float)(hk_tq4_levels[edge + 1] - hk_tq4_levels[edge]) : 0.0f;
        const float error = x[i] - scale * level;
        square[i] = error * error;
    }
    for (int half = HK_HALF; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            square[i] += square[i + half];
    return square[0];
}

static float tq4_scale(const float *x, uint8_t *dst)
{
    float most = 0.0f, nearest = INFINITY, best = 0.0f;
    for (int i = 0; i < HK_BLOCK; i++)
        most = fmaxf(most, fabsf(x[i]));
    for (int fit = 0; fit < TQ4_FITS; fit++) {
        uint8_t bits[2];
        const float scale = most / 127.0f * fits[fit], inverse = put_scale(scale, bits);
        const float distance = tq4_distance(x, scale_at(bits), inverse);
        if (distance < nearest) {
            nearest = distance;
            best = scale;
        }
    }
    return put_scale(best, dst);
}

/* Leaves in x what is left of it once the errors are made up for. */
static void write_tq4(float *x, int64_t head_size, const float *feedback, uint8_t *dst)
{
    memset(dst, 0, (size_t)(head_size / HK_BLOCK * TQ4_BYTES));
    for (int64_t block = head_size / HK_BLOCK - 1; block >= 0; block--) {
        uint8_t *to = dst + block * TQ4_BYTES;
        const float inverse = tq4_scale(x + block * HK_BLOCK, to), scale = scale_at(to);
        for (int64_t i = (block + 1) * HK_BLOCK - 1; i >= block * HK_BLOCK; i--) {
            const int nibble = tq4_nibble(x[i] * inverse);
            to[2 + i % HK_HALF] |= (uint8_t)(i % HK_BLOCK < HK_HALF ? nibble : nibble << 4);
            if (!feedback)
                continue;
            const float error = x[i] - scale * (float)hk_tq4_levels[nibble];
            const float *row = feedback + i * (i - 1) / 2;
            for (int64_t j = 0; j < i; j++)
                x[j] += row[j] * error;
        }
    }
}

void hk_codec_read(int codec, const void *src, int64_t head_size, float *dst)
{
    const uint8_t *bytes = src;
    switch (codec) {
    case HK_KV_F32:
        memcpy(dst, src, (size_t)(4 * head_size));
        break;
    case HK_KV_F16:
        for (int64_t i = 0; i < head_size; i++) {
            uint16_t half;
            memcpy(&half, bytes + 2 * i, sizeof half);
            dst[i] = hk_half_to_float(half);
        }
        break;
    case HK_KV_Q8_0:
        for (int64_t block = 0; block < head_size / HK_BLOCK; block++, bytes += Q8_0_BYTES) {
            const float scale = scale_at(bytes);
            for (int i = 0; i < HK_BLOCK; i++)
                dst[block * HK_BLOCK + i] = scale * (float)(int8_t)bytes[2 + i];
        }
        break;
    default:
        for (int64_t block = 0; block < head_size / HK_BLOCK; block++, bytes += TQ4_BYTES) {
            const float scale = scale_at(bytes);
            float *x = dst + block * HK_BLOCK;
            for (int i = 0; i < HK_HALF; i++) {
                x[i] = scale * (float)hk_tq4_levels[bytes[2 + i] & 15];
                x[i + HK_HALF] = scale * (float)hk_tq4_levels[bytes[2 + i] >> 4];
            }
        }
        break;
    }
}

/* Units of `size` bytes, from a row into the strip and back. */
static inline void put_units(const uint8_t *row, int64_t units, size_t size, int position, uint8_t *strip)
{
    for (int64_t i = 0; i < units; i++)
        memcpy(strip + (size_t)(i * HK_LANES + position) * size, row + (size_t)i * size, size);
}

static inline void get_units(const uint8_t *strip, int64_t units, size_t size, int position, uint8_t *row)
{
    for (int64_t i = 0; i < units; i++)
        memcpy(row + (size_t)i * size, strip + (size_t)(i * HK_LANES + position) * size, size);
}

void hk_strip_put(int codec, const uint8_t *row, int64_t head_size, int position, uint8_t *strip)
{
    if (codec == HK_KV_F32) {
        put_units(row, head_size, 4, position, strip);
    } else if (codec == HK_KV_F16) {
        put_units(row, head_size, 2, position, strip);
    } else {
        const int bytes = codec == HK_KV_Q8_0 ? Q8_0_BYTES : TQ4_BYTES;
        for (int64_t block = 0; block < head_size / HK_BLOCK; block++, row += bytes, strip += HK_LANES * bytes) {
            put_units(row, 1, 2, position, strip);
            put_units(row + 2, bytes - 2, 1, position, strip + 2 * HK_LANES);
        }
    }
}

void hk_strip_get(int codec, const uint8_t *strip, int64_t head_size, int position, uint8_t *row)
{
    if (codec == HK_KV_F32) {
        get_units(strip, head_size, 4, position, row);
    } else if (codec == HK_KV_F16) {
        get_units(strip, head_size, 2, position, row);
    } else {
        const int bytes = codec == HK_KV_Q8_0 ? Q8_0_BYTES : TQ4_BYTES;
        for (int64_t block = 0; block < head_size / HK_BLOCK; block++, row += bytes, strip += HK_LANES * bytes) {
            get_units(strip, 1, 2, position, row);
            get_units(strip + 2 * HK_LANES, bytes - 2, 1, position, row + 2);
        }
    }
}

/* Copy `positions` values of `size` bytes from the front of each of `units` units. */
static void copy_units(const uint8_t *from, int64_t units, int size, int positions, uint8_t *to)
{
    for (int64_t at = 0; at < units * HK_LANES * size; at += HK_LANES * size)
        memcpy(to + at, from + at, (size_t)(positions * size));
}

void hk_strip_copy(int codec, const uint8_t *from, int64_t head_size, int positions, uint8_t *to)
{
    if (codec == HK_KV_F32 || codec == HK_KV_F16) {
        copy_units(from, head_size, codec == HK_KV_F32 ? 4 : 2, positions, to);
        return;
    }
    const int bytes = codec == HK_KV_Q8_0 ? Q8_0_BYTES : TQ4_BYTES;
    for (int64_t at = 0; at < head_size / HK_BLOCK * HK_LANES * bytes; at += HK_LANES * bytes) {
        copy_units(from + at, 1, 2, positions, to + at);
        copy_units(from + at + 2 * HK_LANES, bytes - 2, 1, positions, to + at + 2 * HK_LANES);
    }
}

/* Largest head: 4,096 values, checked by the caller. */
enum { MAX_HEAD = 4096 };

void hk_codec_encode(int codec, const float *src, int64_t head_size, const float *scale, const float *feedback,
                     void *dst)
{
    float head[MAX_HEAD];
    uint8_t *bytes = dst;
    if (codec == HK_KV_F32) {
        memcpy(dst, src, (size_t)head_size * sizeof *src);
        return;
    }
    memcpy(head, src, (size_t)head_size * sizeof head[0]);
    for (int64_t i = 0; scale && i < head_size; i++)
        head[i] *= scale[i];
    hk_codec_rotate(codec, head, head_size);
    if (codec == HK_KV_F16)
        for (int64_t i = 0; i < head_size; i++) {
            const uint16_t bits = hk_float_to_half(head[i]);
            memcpy(bytes + 2 * i, &bits, sizeof bits);
        }
    else if (codec == HK_KV_Q8_0)
        for (int64_t block = 0; block < head_size / HK_BLOCK; block++)
            write_q8_0(head + block * HK_BLOCK, bytes + block * Q8_0_BYTES);
    else
        write_tq4(head, head_size, feedback, bytes);
}

void hk_codec_decode(int codec, const void *src, int64_t head_size, const float *scale, float *dst)
{
    hk_codec_read(codec, src, head_size, dst);
    hk_codec_unrotate(codec, dst, head_size);
    for (int64_t i = 0; scale && i < head_size; i++)
        dst[i] /= scale[i];
}
