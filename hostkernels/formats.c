/* formats.c: the block formats of GGUF files, as GGML defines them (ggml-common.h, ggml-quants.c).
 *
 * Every quantised format is read into one common shape: signed bytes with a scale and a minimum per
 * 16 values. Products follow the order of GGML's own dequantisers, so that dequantised values are
 * equal bit for bit. A row in the table is all there is to a format.
 */
#include "internal.h"

static float half_at(const uint8_t *src)
{
    uint16_t bits;
    memcpy(&bits, src, sizeof bits);
    return hk_half_to_float(bits);
}

/* One scale and minimum for a whole block of 32. */
static void set_scales(hk_values *out, float scale, float min)
{
    out->scale[0] = out->scale[1] = scale;
    out->min[0] = out->min[1] = min;
}

/* 16 bytes: low nibbles are values 0 to 15, high nibbles 16 to 31. */
static void read_nibbles(const uint8_t *src, int8_t *q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)(src[i] & 15);
        q[i + 16] = (int8_t)(src[i] >> 4);
    }
}

/* 4 bytes: bit i is the fifth bit of value i. */
static void add_fifth_bits(const uint8_t *src, int8_t *q)
{
    uint32_t bits;
    memcpy(&bits, src, sizeof bits);
    for (int i = 0; i < 32; i++)
        q[i] = (int8_t)(q[i] | (int8_t)((bits >> i & 1) << 4));
}

/* d f16, 16 bytes of nibbles; value = d * (q - 8). */
static void read_q4_0(const uint8_t *block, hk_values *out)
{
    const float d = half_at(block);
    read_nibbles(block + 2, out->q);
    set_scales(out, d, -8.0f * d);
}

/* d f16, m f16, 16 bytes of nibbles; value = d * q + m. */
static void read_q4_1(const uint8_t *block, hk_values *out)
{
    read_nibbles(block + 4, out->q);
    set_scales(out, half_at(block), half_at(block + 2));
}

/* d f16, 4 bytes of fifth bits, 16 bytes of nibbles; value = d * (q - 16). */
static void read_q5_0(const uint8_t *block, hk_values *out)
{
    const float d = half_at(block);
    read_nibbles(block + 6, out->q);
    add_fifth_bits(block + 2, out->q);
    set_scales(out, d, -16.0f * d);
}

/* d f16, m f16, 4 bytes of fifth bits, 16 bytes of nibbles; value = d * q + m. */
static void read_q5_1(const uint8_t *block, hk_values *out)
{
    read_nibbles(block + 8, out->q);
    add_fifth_bits(block + 4, out->q);
    set_scales(out, half_at(block), half_at(block + 2));
}

/* d f16, 32 signed bytes; value = d * q. */
static void read_q8_0(const uint8_t *block, hk_values *out)
{
    memcpy(out->q, block + 2, 32);
    set_scales(out, half_at(block), 0.0f);
}

/* 16 bytes of (scale, min) nibbles, 64 bytes of 2-bit values, d f16, dmin f16. */
static void read_q2_k(const uint8_t *block, hk_values *out)
{
    const uint8_t *scales = block, *qs = block + 16;
    const float d = half_at(block + 80), dmin = half_at(block + 82);
    for (int i = 0; i < HK_SUPER; i++) {
        const int half = i / 128, shift = i % 128 / 32, byte = i % 32;
        out->q[i] = (int8_t)(qs[half * 32 + byte] >> (2 * shift) & 3);
    }
    for (int s = 0; s < 16; s++) {
        out->scale[s] = d * (float)(scales[s] & 15);
        out->min[s] = -(dmin * (float)(scales[s] >> 4));
    }
}

/* 32 bytes of third bits, 64 bytes of 2-bit values, 12 bytes of sixteen 6-bit scales, d f16. */
static void read_q3_k(const uint8_t *block, hk_values *out)
{
    const uint8_t *high = block, *qs = block + 32, *packed = block + 96;
    const float d = half_at(block + 108);
    for (int i = 0; i < HK_SUPER; i++) {
        const int half = i / 128, shift = i % 128 / 32, byte = i % 32;
        const int low = qs[half * 32 + byte] >> (2 * shift) & 3;
        const int bit = high[byte] >> (4 * half + shift) & 1;
        out->q[i] = (int8_t)(low - (bit ? 0 : 4));
    }
    for (int s = 0; s < 16; s++) {
        const int low = s < 8 ? packed[s] & 15 : packed[s - 8] >> 4;
        const int top = packed[8 + s % 4] >> (2 * (s / 4)) & 3;
        out->scale[s] = d * (float)((low | top << 4) - 32);
        out->min[s] = 0.0f;
    }
}

/* The eight 6-bit scales and eight 6-bit minima that Q4_K and Q5_K keep in 12 bytes. */
static void read_k_scales(const uint8_t *packed, float d, float dmin, hk_values *out)
{
    for (int s = 0; s < 8; s++) {
        int scale, min;
        if (s < 4) {
            scale = packed[s] & 63;
            min = packed[s + 4] & 63;
        } else {
            scale = (packed[s + 4] & 15) | (packed[s - 4] >> 6) << 4;
            min = packed[s + 4] >> 4 | (packed[s] >> 6) << 4;
        }
        out->scale[2 * s] = out->scale[2 * s + 1] = d * (float)scale;
        out->min[2 * s] = out->min[2 * s + 1] = -(dmin * (float)min);
    }
}

/* d f16, dmin f16, 12 bytes of scales, 128 bytes of nibbles in runs of 64 values. */
static void read_q4_k(const uint8_t *block, hk_values *out)
{
    const uint8_t *qs = block + 16;
    for (int i = 0; i < HK_SUPER; i++)
        out->q[i] = (int8_t)(qs[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15);
    read_k_scales(block + 4, half_at(block), half_at(block + 2), out);
}

/* As Q4_K with 32 bytes of fifth bits before the nibbles. */
static void read_q5_k(const uint8_t *block, hk_values *out)
{
    const uint8_t *high = block + 16, *qs = block + 48;
    for (int i = 0; i < HK_SUPER; i++) {
        const int low = qs[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
        const int bit = high[i % 32] >> (i / 32) & 1;
        out->q[i] = (int8_t)(low | bit << 4);
    }
    read_k_scales(block + 4, half_at(block), half_at(block + 2), out);
}

/* 128 bytes of low nibbles, 64 bytes of high bit pairs, sixteen signed scales, d f16; q - 32. */
static void read_q6_k(const uint8_t *block, hk_values *out)
{
    const uint8_t *low = block, *high = block + 128;
    const float d = half_at(block + 208);
    for (int i = 0; i < HK_SUPER; i++) {
        const int half = i / 128, part = i % 128 / 32, byte = i % 32;
        const int nibble = low[half * 64 + part % 2 * 32 + byte] >> (part / 2 * 4) & 15;
        const int pair = high[half * 32 + byte] >> (2 * part) & 3;
        out->q[i] = (int8_t)((nibble | pair << 4) - 32);
    }
    for (int s = 0; s < 16; s++) {
        out->scale[s] = d * (float)(int8_t)block[192 + s];
        out->min[s] = 0.0f;
    }
}

static const struct {
    int format;
    hk_format_info info;
} table[] = {
    {HK_F32, {1, 4, HK_LAYOUT_F32X16, NULL}},
    {HK_F16, {1, 2, HK_LAYOUT_F16X16, NULL}},
    {HK_BF16, {1, 2, HK_LAYOUT_BF16X16, NULL}},
    {HK_Q4_0, {32, 18, HK_LAYOUT_Q4SX16, read_q4_0}},
    {HK_Q4_1, {32, 20, HK_LAYOUT_Q4X16, read_q4_1}},
    {HK_Q5_0, {32, 22, HK_LAYOUT_Q5SX16, read_q5_0}},
    {HK_Q5_1, {32, 24, HK_LAYOUT_Q5X16, read_q5_1}},
    {HK_Q8_0, {32, 34, HK_LAYOUT_Q8X16, read_q8_0}},
    {HK_Q2_K, {256, 84, HK_LAYOUT_Q2X16, read_q2_k}},
    {HK_Q3_K, {256, 110, HK_LAYOUT_Q3X16, read_q3_k}},
    {HK_Q4_K, {256, 144, HK_LAYOUT_Q4X16, read_q4_k}},
    {HK_Q5_K, {256, 176, HK_LAYOUT_Q5X16, read_q5_k}},
    {HK_Q6_K, {256, 210, HK_LAYOUT_Q6X16, read_q6_k}},
};

const hk_format_info *hk_format_find(int format)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].format == format)
            return &table[i].info;
    return NULL;
}

int hk_layout_of(int format)
{
    const hk_format_info *info = hk_format_find(format);
    return info ? info->layout : -1;
}

float hk_read_float(int format, const uint8_t *src, int64_t index)
{
    if (format == HK_F32) {
        float value;
        memcpy(&value, src + 4 * index, sizeof value);
        return value;
    }
    uint16_t bits;
    memcpy(&bits, src + 2 * index, sizeof bits);
    return format == HK_F16 ? hk_half_to_float(bits) : hk_bfloat_to_float(bits);
}

void hk_dequantise(int format, const void *src, int64_t count, float *dst)
{
    const hk_format_info *info = hk_format_find(format);
    if (!info->read) {
        for (int64_t i = 0; i < count; i++)
            dst[i] = hk_read_float(format, src, i);
        return;
    }
    const uint8_t *block = src;
    for (int64_t done = 0; done < count; done += info->elements, block += info->bytes) {
        hk_values values;
        info->read(block, &values);
        const int64_t n = hk_min(info->elements, count - done);
        for (int64_t i = 0; i < n; i++)
            dst[done + i] = values.scale[i / HK_HALF] * (float)values.q[i] + values.min[i / HK_HALF];
    }
}
