/* device_layouts.c: the layouts of weights on a device, and copying to it.
 *
 * The quants and scales are those of the host's packed layout of the same number, bit for bit, so that both
 * compute the same block terms; only their places differ. Rows are cut into groups of HK_DEVICE_ROWS, columns
 * into blocks of 32, both padded with zeros, and a matrix into three planes, so that neighbouring rows read
 * neighbouring bytes:
 *
 *   quants   units of 16 bytes; unit u of row r in block b of group g is number
 *            ((g * blocks + b) * units + u) * HK_DEVICE_ROWS + r
 *   high     the upper bits of one row's block, number (g * blocks + b) * HK_DEVICE_ROWS + r
 *   scales   the f16 scale or scales and the min of one row's block, numbered likewise
 *
 *   nibbles  16 bytes; byte i holds column i in its low and column i + 16 in its high nibble
 *   pairs    two words; column c is the two bits at 2 * (c % 16) of word c / 16
 *   bits     one word; column c is bit c
 *
 *          quants                                                  high             scales
 *   q8     32 signed bytes                                                          scale
 *   q4     nibbles                                                                  scale, min
 *   q4s    nibbles; the min is -8 scales                                            scale
 *   q5     nibbles                                                 bits (bit 4)     scale, min
 *   q5s    nibbles; the min is -16 scales                          bits (bit 4)     scale
 *   q6     nibbles; stored + 32                                    pairs (4 and 5)  2 scales
 *   q3     pairs, bits (bit 2), 2 scales; stored + 4
 *   q2     pairs, 2 scales, 2 mins
 *   f32, f16, bf16   the columns in order, 4 or 8 to a unit
 */
#include "internal.h"

enum { UNIT = 16, NEXT_UNIT = UNIT * HK_DEVICE_ROWS };

/* One row of one block; q is as stored, the offset added. A layout with one scale a block has it twice. */
typedef struct row_block {
    int16_t q[HK_BLOCK];
    float scale[2];
    float min[2];
} row_block;

/* Where it lies; its units are NEXT_UNIT bytes apart. */
typedef struct place {
    uint8_t *quants;
    uint8_t *high;
    uint8_t *scales;
} place;

typedef struct device_layout {
    const char *name;
    int32_t units;
    int32_t high;   /* bytes of a row's block */
    int32_t scales; /* likewise */
    int32_t offset; /* added to what is stored */
    void (*encode)(const row_block *src, place dst);
    void (*decode)(place src, row_block *dst);
} device_layout;

static void put_nibbles(const int16_t *q, uint8_t *dst)
{
    for (int i = 0; i < 16; i++)
        dst[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

static void get_nibbles(const uint8_t *src, int16_t *q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = src[i] & 15;
        q[i + 16] = src[i] >> 4;
    }
}

static void put_word(uint32_t word, uint8_t *dst) { memcpy(dst, &word, sizeof word); }

static uint32_t get_word(const uint8_t *src)
{
    uint32_t word;
    memcpy(&word, src, sizeof word);
    return word;
}

static void put_pairs(const int16_t *q, int shift, uint8_t *dst)
{
    for (int half = 0; half < 2; half++) {
        uint32_t word = 0;
        for (int i = 0; i < 16; i++)
            word |= (uint32_t)(q[16 * half + i] >> shift & 3) << 2 * i;
        put_word(word, dst + 4 * half);
    }
}

static void add_pairs(const uint8_t *src, int shift, int16_t *q)
{
    for (int c = 0; c < HK_BLOCK; c++)
        q[c] = (int16_t)(q[c] | (int)(get_word(src + 4 * (c / 16)) >> 2 * (c % 16) & 3) << shift);
}

static void put_bits(const int16_t *q, int shift, uint8_t *dst)
{
    uint32_t word = 0;
    for (int c = 0; c < HK_BLOCK; c++)
        word |= (uint32_t)(q[c] >> shift & 1) << c;
    put_word(word, dst);
}

static void add_bits(const uint8_t *src, int shift, int16_t *q)
{
    for (int c = 0; c < HK_BLOCK; c++)
        q[c] = (int16_t)(q[c] | (int)(get_word(src) >> c & 1) << shift);
}

static void put_half(float value, uint8_t *dst)
{
    const uint16_t bits = hk_float_to_half(value);
    memcpy(dst, &bits, sizeof bits);
}

static float get_half(const uint8_t *src)
{
    uint16_t bits;
    memcpy(&bits, src, sizeof bits);
    return hk_half_to_float(bits);
}

static void put_halves(const float *values, uint8_t *dst)
{
    put_half(values[0], dst);
    put_half(values[1], dst + 2);
}

static void get_halves(const uint8_t *src, float *values)
{
    values[0] = get_half(src);
    values[1] = get_half(src + 2);
}

/* A scale and a min for the whole block. */
static void put_scale_min(const row_block *src, uint8_t *dst)
{
    put_half(src->scale[0], dst);
    put_half(src->min[0], dst + 2);
}

static void get_scale_min(const uint8_t *src, row_block *dst)
{
    dst->scale[0] = dst->scale[1] = get_half(src);
    dst->min[0] = dst->min[1] = get_half(src + 2);
}

/* A scale for the whole block; the min is -half scales, exactly: half is a power of two. */
static void get_scale(const uint8_t *src, float half, row_block *dst)
{
    dst->scale[0] = dst->scale[1] = get_half(src);
    dst->min[0] = dst->min[1] = -half * dst->scale[0];
}

static void encode_q8(const row_block *src, place dst)
{
    for (int u = 0; u < 2; u++)
        for (int i = 0; i < UNIT; i++)
            dst.quants[u * NEXT_UNIT + i] = (uint8_t)src->q[u * UNIT + i];
    put_half(src->scale[0], dst.scales);
}

static void decode_q8(place src, row_block *dst)
{
    for (int u = 0; u < 2; u++)
        for (int i = 0; i < UNIT; i++)
            dst->q[u * UNIT + i] = (int8_t)src.quants[u * NEXT_UNIT + i];
    dst->scale[0] = dst->scale[1] = get_half(src.scales);
}

static void encode_q4(const row_block *src, place dst)
{
    put_nibbles(src->q, dst.quants);
    put_scale_min(src, dst.scales);
}

static void decode_q4(place src, row_block *dst)
{
    get_nibbles(src.quants, dst->q);
    get_scale_min(src.scales, dst);
}

static void encode_q4s(const row_block *src, place dst)
{
    put_nibbles(src->q, dst.quants);
    put_half(src->scale[0], dst.scales);
}

static void decode_q4s(place src, row_block *dst)
{
    get_nibbles(src.quants, dst->q);
    get_scale(src.scales, 8.0f, dst);
}

static void encode_q5(const row_block *src, place dst)
{
    encode_q4(src, dst);
    put_bits(src->q, 4, dst.high);
}

static void decode_q5(place src, row_block *dst)
{
    decode_q4(src, dst);
    add_bits(src.high, 4, dst->q);
}

static void encode_q5s(const row_block *src, place dst)
{
    encode_q4s(src, dst);
    put_bits(src->q, 4, dst.high);
}

static void decode_q5s(place src, row_block *dst)
{
    get_nibbles(src.quants, dst->q);
    add_bits(src.high, 4, dst->q);
    get_scale(src.scales, 16.0f, dst);
}

static void encode_q6(const row_block *src, place dst)
{
    put_nibbles(src->q, dst.quants);
    put_pairs(src->q, 4, dst.high);
    put_halves(src->scale, dst.scales);
}

static void decode_q6(place src, row_block *dst)
{
    get_nibbles(src.quants, dst->q);
    add_pairs(src.high, 4, dst->q);
    get_halves(src.scales, dst->scale);
}

static void encode_q3(const row_block *src, place dst)
{
    put_pairs(src->q, 0, dst.quants);
    put_bits(src->q, 2, dst.quants + 8);
    put_halves(src->scale, dst.quants + 12);
}

static void decode_q3(place src, row_block *dst)
{
    add_pairs(src.quants, 0, dst->q);
    add_bits(src.quants + 8, 2, dst->q);
    get_halves(src.quants + 12, dst->scale);
}

static void encode_q2(const row_block *src, place dst)
{
    put_pairs(src->q, 0, dst.quants);
    put_halves(src->scale, dst.quants + 8);
    put_halves(src->min, dst.quants + 12);
}

static void decode_q2(place src, row_block *dst)
{
    add_pairs(src.quants, 0, dst->q);
    get_halves(src.quants + 8, dst->scale);
    get_halves(src.quants + 12, dst->min);
}

static const device_layout table[HK_LAYOUTS] = {
    [HK_LAYOUT_F32X16] = {"f32", 8, 0, 0, 0, NULL, NULL},
    [HK_LAYOUT_F16X16] = {"f16", 4, 0, 0, 0, NULL, NULL},
    [HK_LAYOUT_BF16X16] = {"bf16", 4, 0, 0, 0, NULL, NULL},
    [HK_LAYOUT_Q8X16] = {"q8", 2, 0, 2, 0, encode_q8, decode_q8},
    [HK_LAYOUT_Q4X16] = {"q4", 1, 0, 4, 0, encode_q4, decode_q4},
    [HK_LAYOUT_Q4SX16] = {"q4s", 1, 0, 2, 0, encode_q4s, decode_q4s},
    [HK_LAYOUT_Q5X16] = {"q5", 1, 4, 4, 0, encode_q5, decode_q5},
    [HK_LAYOUT_Q5SX16] = {"q5s", 1, 4, 2, 0, encode_q5s, decode_q5s},
    [HK_LAYOUT_Q6X16] = {"q6", 1, 8, 4, 32, encode_q6, decode_q6},
    [HK_LAYOUT_Q3X16] = {"q3", 1, 0, 0, 4, encode_q3, decode_q3},
    [HK_LAYOUT_Q2X16] = {"q2", 1, 0, 0, 0, encode_q2, decode_q2},
};

const char *hk_device_layout_name(int layout) { return table[layout].name; }

static int64_t device_groups(int64_t rows) { return (rows + HK_DEVICE_ROWS - 1) / HK_DEVICE_ROWS; }

int64_t hk_device_plane_bytes(int layout, int64_t rows, int64_t columns, int plane)
{
    const device_layout *info = &table[layout];
    const int32_t bytes[HK_PLANES] = {info->units * UNIT, info->high, info->scales};
    return device_groups(rows) * hk_blocks(columns) * HK_DEVICE_ROWS * bytes[plane];
}

/* A row of block number `block`, counted over all groups. */
static place place_of(const device_layout *layout, place planes, int64_t block, int row)
{
    const int64_t number = block * HK_DEVICE_ROWS + row;
    return (place){planes.quants + block * layout->units * NEXT_UNIT + row * UNIT,
                   layout->high ? planes.high + number * layout->high : NULL,
                   layout->scales ? planes.scales + number * layout->scales : NULL};
}

typedef struct device_pack_job {
    const hk_format_info *format;
    const device_layout *layout;
    const uint8_t *src;
    int64_t rows, columns;
    place planes; /* of the first group */
} device_pack_job;

static const uint8_t *block_in_file(const device_pack_job *job, int64_t row, int64_t block)
{
    const hk_format_info *format = job->format;
    return job->src + (row * (job->columns / format->elements) + block * HK_BLOCK / format->elements)
                          * format->bytes;
}

/* Blocks [block, block + count) of one row of a group, all inside one block of the file. */
static void pack_quants(const device_pack_job *job, int64_t group, int row, int64_t block, int64_t count)
{
    const device_layout *layout = job->layout;
    hk_values values;
    job->format->read(block_in_file(job, group * HK_DEVICE_ROWS + row, block), &values);
    for (int64_t b = 0; b < count; b++) {
        row_block one;
        for (int c = 0; c < HK_BLOCK; c++)
            one.q[c] = (int16_t)(values.q[b * HK_BLOCK + c] + layout->offset);
        memcpy(one.scale, values.scale + 2 * b, sizeof one.scale);
        memcpy(one.min, values.min + 2 * b, sizeof one.min);
        layout->encode(&one, place_of(layout, job->planes, group * hk_blocks(job->columns) + block + b, row));
    }
}

/* The bytes of one row's block of floats, as they are in the file. */
static void pack_floats(const device_pack_job *job, int64_t group, int row, int64_t block)
{
    const int size = job->format->bytes;
    uint8_t floats[4 * HK_BLOCK] = {0};
    memcpy(floats, block_in_file(job, group * HK_DEVICE_ROWS + row, block),
           (size_t)(hk_min(HK_BLOCK, job->columns - block * HK_BLOCK) * size));
    const place dst = place_of(job->layout, job->planes, group * hk_blocks(job->columns) + block, row);
    for (int u = 0; u < job->layout->units; u++)
        memcpy(dst.quants + u * NEXT_UNIT, floats + u * UNIT, UNIT);
}

/* Zero `count` blocks of a group in every plane: what no row fills stays zero. */
static void clear_blocks(const device_pack_job *job, int64_t group, int64_t block, int64_t count)
{
    const device_layout *layout = job->layout;
    const place dst = place_of(layout, job->planes, group * hk_blocks(job->columns) + block, 0);
    memset(dst.quants, 0, (size_t)(count * layout->units * NEXT_UNIT));
    if (dst.high)
        memset(dst.high, 0, (size_t)(count * layout->high * HK_DEVICE_ROWS));
    if (dst.scales)
        memset(dst.scales, 0, (size_t)(count * layout->scales * HK_DEVICE_ROWS));
}

static void device_pack_task(void *context, int part, int parts)
{
    const device_pack_job *job = context;
    const int64_t blocks = hk_blocks(job->columns);
    const int64_t step = job->format->read ? job->format->elements / HK_BLOCK : 1;
    int64_t first, last;
    hk_share(device_groups(job->rows), part, parts, &first, &last);
    for (int64_t group = first; group < last; group++) {
        const int rows = (int)hk_min(HK_DEVICE_ROWS, job->rows - group * HK_DEVICE_ROWS);
        for (int64_t block = 0; block < blocks; block += step) {
            if (rows < HK_DEVICE_ROWS)
                clear_blocks(job, group, block, step);
            for (int row = 0; row < rows; row++) {
                if (job->format->read)
                    pack_quants(job, group, row, block, step);
                else
                    pack_floats(job, group, row, block);
            }
        }
    }
}

void hk_device_pack(hk_pool *pool, int format, const void *src, int64_t rows, int64_t columns,
                    int64_t first_row, void *quants, void *high, void *scales)
{
    const hk_format_info *info = hk_format_find(format);
    const device_layout *layout = &table[info->layout];
    const int64_t block = first_row / HK_DEVICE_ROWS * hk_blocks(columns);
    device_pack_job job = {info, layout, src, rows, columns,
                           place_of(layout, (place){quants, high, scales}, block, 0)};
    hk_pool_run(pool, device_pack_task, &job);
}

static void unpack_quants(const device_layout *layout, place src, float *dst)
{
    row_block one = {0};
    layout->decode(src, &one);
    for (int c = 0; c < HK_BLOCK; c++)
        dst[c] = one.scale[c / HK_HALF] * (float)(one.q[c] - layout->offset) + one.min[c / HK_HALF];
}

static void unpack_floats(int layout, place src, float *dst)
{
    static const int format_of[] = {
        [HK_LAYOUT_F32X16] = HK_F32, [HK_LAYOUT_F16X16] = HK_F16, [HK_LAYOUT_BF16X16] = HK_BF16};
    uint8_t floats[4 * HK_BLOCK];
    for (int u = 0; u < table[layout].units; u++)
        memcpy(floats + u * UNIT, src.quants + u * NEXT_UNIT, UNIT);
    for (int c = 0; c < HK_BLOCK; c++)
        dst[c] = hk_read_float(format_of[layout], floats, c);
}

void hk_device_unpack_row(int layout, const void *quants, const void *high, const void *scales,
                          int64_t columns, int64_t row, float *dst)
{
    const place planes = {(uint8_t *)quants, (uint8_t *)high, (uint8_t *)scales};
    const int64_t first = row / HK_DEVICE_ROWS * hk_blocks(columns);
    for (int64_t block = 0; block < hk_blocks(columns); block++) {
        const place src = place_of(&table[layout], planes, first + block, (int)(row % HK_DEVICE_ROWS));
        float values[HK_BLOCK];
        if (table[layout].decode)
            unpack_quants(&table[layout], src, values);
        else
            unpack_floats(layout, src, values);
        memcpy(dst + block * HK_BLOCK, values,
               (size_t)hk_min(HK_BLOCK, columns - block * HK_BLOCK) * sizeof *dst);
    }
}

typedef struct copy_job {
    uint8_t *dst;
    const uint8_t *src;
    int64_t bytes;
} copy_job;

static void copy_task(void *context, int part, int parts)
{
    const copy_job *job = context;
    int64_t first, last;
    hk_share((job->bytes + 4095) / 4096, part, parts, &first, &last);
    const int64_t start = first * 4096, end = hk_min(last * 4096, job->bytes);
    if (start < end)
        memcpy(job->dst + start, job->src + start, (size_t)(end - start));
}

void hk_copy(hk_pool *pool, void *dst, const void *src, int64_t bytes)
{
    copy_job job = {dst, src, bytes};
    hk_pool_run(pool, copy_task, &job);
}
