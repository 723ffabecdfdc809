/* codecs.c: how rows of K and V are kept.
 *
 *   f32, f16  as they are, f16 rounded to nearest even
 *   q8_0      rotated by blocks of 32; then per block: f16 scale = max|x| / 127, 32 signed bytes (the form of
 *             GGML's Q8_0)
 *   tq4       rotated over the whole head; then per 32 values: f16 scale, 16 bytes of nibbles (the form of
 *             GGML's Q4_0), value = scale * (q - 8)
 *
 * Rotating multiplies by a fixed vector of signs and by the orthonormal Walsh-Hadamard transform, which
 * spreads outliers, of which keys have many, over all values. The rotation R is orthonormal, so
 * q.k = (Rq).(Rk): attention stays in the rotated basis, with the query rotated once and the output
 * rotated back once per head.
 */
#include "internal.h"

enum { Q8_0_BYTES = 34, TQ4_BYTES = 18 };

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

/* The value of largest magnitude lands on -8, the end of the range that has one more step. */
static void write_tq4(const float *x, uint8_t *dst)
{
    float peak = 0.0f;
    for (int i = 0; i < HK_BLOCK; i++)
        if (fabsf(x[i]) > fabsf(peak))
            peak = x[i];
    const float inverse = put_scale(peak / -8.0f, dst);
    for (int i = 0; i < HK_HALF; i++) {
        const int low = (int)clamp(x[i] * inverse + 8.5f, 0.0f, 15.0f);
        const int high = (int)clamp(x[i + HK_HALF] * inverse + 8.5f, 0.0f, 15.0f);
        dst[2 + i] = (uint8_t)(low | high << 4);
    }
}

void hk_codec_write(int codec, const float *src, int64_t head_size, void *dst)
{
    uint8_t *bytes = dst;
    switch (codec) {
    case HK_KV_F32:
        memcpy(dst, src, (size_t)(4 * head_size));
        break;
    case HK_KV_F16:
        for (int64_t i = 0; i < head_size; i++) {
            const uint16_t bits = hk_float_to_half(src[i]);
            memcpy(bytes + 2 * i, &bits, sizeof bits);
        }
        break;
    case HK_KV_Q8_0:
        for (int64_t block = 0; block < head_size / HK_BLOCK; block++)
            write_q8_0(src + block * HK_BLOCK, bytes + block * Q8_0_BYTES);
        break;
    default:
        for (int64_t block = 0; block < head_size / HK_BLOCK; block++)
            write_tq4(src + block * HK_BLOCK, bytes + block * TQ4_BYTES);
        break;
    }
}

static float scale_at(const uint8_t *src)
{
    uint16_t bits;
    memcpy(&bits, src, sizeof bits);
    return hk_half_to_float(bits);
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
                x[i] = scale * (float)((bytes[2 + i] & 15) - 8);
                x[i + HK_HALF] = scale * (float)((bytes[2 + i] >> 4) - 8);
            }
        }
        break;
    }
}

void hk_strip_put(int codec, const uint8_t *row, int64_t head_size, int position, uint8_t *strip)
{
    switch (codec) {
    case HK_KV_F32:
        for (int64_t i = 0; i < head_size; i++)
            memcpy(strip + 4 * (i * HK_LANES + position), row + 4 * i, 4);
        break;
    case HK_KV_F16:
        for (int64_t i = 0; i < head_size; i++)
            memcpy(strip + 2 * (i * HK_LANES + position), row + 2 * i, 2);
        break;
    default: {
        const int bytes = codec == HK_KV_Q8_0 ? Q8_0_BYTES : TQ4_BYTES;
        for (int64_t block = 0; block < head_size / HK_BLOCK; block++, row += bytes, strip += HK_LANES * bytes) {
            memcpy(strip + 2 * position, row, 2);
            for (int i = 2; i < bytes; i++)
                strip[HK_LANES * i + position] = row[i];
        }
        break;
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

void hk_codec_encode(int codec, const float *src, int64_t head_size, void *dst)
{
    float head[MAX_HEAD];
    memcpy(head, src, (size_t)head_size * sizeof head[0]);
    hk_codec_rotate(codec, head, head_size);
    hk_codec_write(codec, head, head_size, dst);
}

void hk_codec_decode(int codec, const void *src, int64_t head_size, float *dst)
{
    hk_codec_read(codec, src, head_size, dst);
    hk_codec_unrotate(codec, dst, head_size);
}
