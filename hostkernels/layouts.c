/* layouts.c: the packed layouts that matmul kernels read.
 *
 * A matrix is cut into groups of 16 rows (lanes), a group into blocks of 32 columns; blocks of a group
 * follow each other, then the next group. Inside a block the columns are cut into eight quads of four,
 * and one 64-byte vector holds one quad of all lanes: byte lane * 4 + i is column 4 * quad + i. That is
 * the operand of a dot-product instruction over bytes, with the activations' quad broadcast.
 *
 *   nibbles   4 vectors; vector v holds quad v in its low and quad v + 4 in its high nibbles
 *   pairs     2 vectors; vector v holds quads 4v to 4v + 3, two bits each, lowest first
 *   bits      1 vector; bit q of a byte belongs to quad q
 *   scales    16 halves (f16), one per lane; two sets where a scale covers 16 columns
 *
 *   q8    8 vectors of signed bytes, scales                        544 bytes
 *   q4    nibbles, scales, mins                                    320
 *   q4s   nibbles, scales; the min of a row is -8 scales           288
 *   q5    nibbles, bits (bit 4), scales, mins                     384
 *   q5s   nibbles, bits (bit 4), scales; the min is -16 scales     352
 *   q6    nibbles, pairs (bits 4 and 5), 2 scales; stored + 32     448
 *   q3    pairs, bits (bit 2), 2 scales; stored + 4               256
 *   q2    pairs, 2 scales, 2 mins                                  256
 *   f32, f16, bf16   column-major: 32 columns of 16 lanes          2048, 1024, 1024
 */
#include "internal.h"

enum { VECTOR_BYTES = 64, NIBBLES = 4 * VECTOR_BYTES, PAIRS = 2 * VECTOR_BYTES, BITS = VECTOR_BYTES,
       SCALES = 2 * HK_LANES };

static void put_scales(uint8_t *dst, const float src[HK_LANES][2], int half)
{
    for (int lane = 0; lane < HK_LANES; lane++) {
        const uint16_t bits = hk_float_to_half(src[lane][half]);
        memcpy(dst + 2 * lane, &bits, sizeof bits);
    }
}

static void get_scales(const uint8_t *src, float dst[HK_LANES])
{
    uint16_t bits[HK_LANES];
    memcpy(bits, src, sizeof bits);
    for (int lane = 0; lane < HK_LANES; lane++)
        dst[lane] = hk_half_to_float(bits[lane]);
}

static void put_nibbles(uint8_t *dst, const uint8_t q[HK_LANES][HK_BLOCK])
{
    for (int v = 0; v < 4; v++)
        for (int lane = 0; lane < HK_LANES; lane++)
            for (int i = 0; i < 4; i++) {
                const int low = q[lane][4 * v + i] & 15, high = q[lane][4 * v + i + 16] & 15;
                dst[v * VECTOR_BYTES + 4 * lane + i] = (uint8_t)(low | high << 4);
            }
}

/* Take `mask` at bit `shift` of every byte of a vector to bit `left` of a quad's four columns. */
static inline void take(const uint8_t *vector, int shift, uint32_t mask, int left, bool first,
                        int16_t quad[4][HK_LANES])
{
    uint32_t words[HK_LANES];
    memcpy(words, vector, sizeof words);
    for (int i = 0; i < 4; i++)
        for (int lane = 0; lane < HK_LANES; lane++) {
            const int16_t value = (int16_t)((words[lane] >> (8 * i + shift) & mask) << left);
            quad[i][lane] = first ? value : (int16_t)(quad[i][lane] | value);
        }
}

static void get_nibbles(const uint8_t *src, int16_t q[HK_BLOCK][HK_LANES])
{
    for (int v = 0; v < 4; v++) {
        take(src + v * VECTOR_BYTES, 0, 15, 0, true, q + 4 * v);
        take(src + v * VECTOR_BYTES, 4, 15, 0, true, q + 4 * v + 16);
    }
}

static void put_pairs(uint8_t *dst, const uint8_t q[HK_LANES][HK_BLOCK], int shift)
{
    memset(dst, 0, PAIRS);
    for (int lane = 0; lane < HK_LANES; lane++)
        for (int c = 0; c < HK_BLOCK; c++) {
            const int pair = q[lane][c] >> shift & 3;
            dst[c / 16 * VECTOR_BYTES + 4 * lane + c % 4] |= (uint8_t)(pair << 2 * (c % 16 / 4));
        }
}

static inline void get_pairs(const uint8_t *src, int left, bool first, int16_t q[HK_BLOCK][HK_LANES])
{
    for (int quad = 0; quad < 8; quad++)
        take(src + quad / 4 * VECTOR_BYTES, 2 * (quad % 4), 3, left, first, q + 4 * quad);
}

static void put_bits(uint8_t *dst, const uint8_t q[HK_LANES][HK_BLOCK], int bit)
{
    memset(dst, 0, BITS);
    for (int lane = 0; lane < HK_LANES; lane++)
        for (int c = 0; c < HK_BLOCK; c++)
            dst[4 * lane + c % 4] |= (uint8_t)((q[lane][c] >> bit & 1) << c / 4);
}

static inline void get_bits(const uint8_t *src, int left, int16_t q[HK_BLOCK][HK_LANES])
{
    for (int quad = 0; quad < 8; quad++)
        take(src, quad, 1, left, false, q + 4 * quad);
}

/* Quants of a source tile plus an offset that makes them unsigned. */
static void to_unsigned(const hk_source_tile *src, int offset, uint8_t q[HK_LANES][HK_BLOCK])
{
    for (int lane = 0; lane < HK_LANES; lane++)
        for (int c = 0; c < HK_BLOCK; c++)
            q[lane][c] = (uint8_t)(src->q[lane][c] + offset);
}

static void from_unsigned(int16_t q[HK_BLOCK][HK_LANES], int offset)
{
    for (int c = 0; c < HK_BLOCK; c++)
        for (int lane = 0; lane < HK_LANES; lane++)
            q[c][lane] = (int16_t)(q[c][lane] - offset);
}

static void encode_q8(const hk_source_tile *src, uint8_t *dst)
{
    for (int quad = 0; quad < 8; quad++)
        for (int lane = 0; lane < HK_LANES; lane++)
            memcpy(dst + quad * VECTOR_BYTES + 4 * lane, src->q[lane] + 4 * quad, 4);
    put_scales(dst + 8 * VECTOR_BYTES, src->scale, 0);
}

static void decode_q8(const uint8_t *src, hk_tile *dst)
{
    for (int quad = 0; quad < 8; quad++) {
        take(src + quad * VECTOR_BYTES, 0, 255, 0, true, dst->q + 4 * quad);
        for (int i = 0; i < 4; i++)
            for (int lane = 0; lane < HK_LANES; lane++)
                dst->q[4 * quad + i][lane] = (int8_t)dst->q[4 * quad + i][lane];
    }
    get_scales(src + 8 * VECTOR_BYTES, dst->scale[0]);
}

static void encode_q4(const hk_source_tile *src, uint8_t *dst)
{
    uint8_t q[HK_LANES][HK_BLOCK];
    to_unsigned(src, 0, q);
    put_nibbles(dst, q);
    put_scales(dst + NIBBLES, src->scale, 0);
    put_scales(dst + NIBBLES + SCALES, src->min, 0);
}

static void decode_q4(const uint8_t *src, hk_tile *dst)
{
    get_nibbles(src, dst->q);
    get_scales(src + NIBBLES, dst->scale[0]);
    get_scales(src + NIBBLES + SCALES, dst->min[0]);
}

static void encode_q4s(const hk_source_tile *src, uint8_t *dst)
{
    uint8_t q[HK_LANES][HK_BLOCK];
    to_unsigned(src, 0, q);
    put_nibbles(dst, q);
    put_scales(dst + NIBBLES, src->scale, 0);
}

/* dst = -half * scale, exactly: half is a power of two. */
static void set_mins(const float scale[HK_LANES], float half, float dst[HK_LANES])
{
    for (int lane = 0; lane < HK_LANES; lane++)
        dst[lane] = -half * scale[lane];
}

static void decode_q4s(const uint8_t *src, hk_tile *dst)
{
    get_nibbles(src, dst->q);
    get_scales(src + NIBBLES, dst->scale[0]);
    set_mins(dst->scale[0], 8.0f, dst->min[0]);
}

static void encode_q5(const hk_source_tile *src, uint8_t *dst)
{
    uint8_t q[HK_LANES][HK_BLOCK];
    to_unsigned(src, 0, q);
    put_nibbles(dst, q);
    put_bits(dst + NIBBLES, q, 4);
    put_scales(dst + NIBBLES + BITS, src->scale, 0);
    put_scales(dst + NIBBLES + BITS + SCALES, src->min, 0);
}

static void decode_q5(const uint8_t *src, hk_tile *dst)
{
    get_nibbles(src, dst->q);
    get_bits(src + NIBBLES, 4, dst->q);
    get_scales(src + NIBBLES + BITS, dst->scale[0]);
    get_scales(src + NIBBLES + BITS + SCALES, dst->min[0]);
}

static void encode_q5s(const hk_source_tile *src, uint8_t *dst)
{
    uint8_t q[HK_LANES][HK_BLOCK];
    to_unsigned(src, 0, q);
    put_nibbles(dst, q);
    put_bits(dst + NIBBLES, q, 4);
    put_scales(dst + NIBBLES + BITS, src->scale, 0);
}

static void decode_q5s(const uint8_t *src, hk_tile *dst)
{
    get_nibbles(src, dst->q);
    get_bits(src + NIBBLES, 4, dst->q);
    get_scales(src + NIBBLES + BITS, dst->scale[0]);
    set_mins(dst->scale[0], 16.0f, dst->min[0]);
}

static void encode_q6(const hk_source_tile *src, uint8_t *dst)
{
    uint8_t q[HK_LANES][HK_BLOCK];
    to_unsigned(src, 32, q);
    put_nibbles(dst, q);
    put_pairs(dst + NIBBLES, q, 4);
    put_scales(dst + NIBBLES + PAIRS, src->scale, 0);
    put_scales(dst + NIBBLES + PAIRS + SCALES, src->scale, 1);
}

static void decode_q6(const uint8_t *src, hk_tile *dst)
{
    get_nibbles(src, dst->q);
    get_pairs(src + NIBBLES, 4, false, dst->q);
    from_unsigned(dst->q, 32);
    get_scales(src + NIBBLES + PAIRS, dst->scale[0]);
    get_scales(src + NIBBLES + PAIRS + SCALES, dst->scale[1]);
}

static void encode_q3(const hk_source_tile *src, uint8_t *dst)
{
    uint8_t q[HK_LANES][HK_BLOCK];
    to_unsigned(src, 4, q);
    put_pairs(dst, q, 0);
    put_bits(dst + PAIRS, q, 2);
    put_scales(dst + PAIRS + BITS, src->scale, 0);
    put_scales(dst + PAIRS + BITS + SCALES, src->scale, 1);
}

static void decode_q3(const uint8_t *src, hk_tile *dst)
{
    get_pairs(src, 0, true, dst->q);
    get_bits(src + PAIRS, 2, dst->q);
    from_unsigned(dst->q, 4);
    get_scales(src + PAIRS + BITS, dst->scale[0]);
    get_scales(src + PAIRS + BITS + SCALES, dst->scale[1]);
}

static void encode_q2(const hk_source_tile *src, uint8_t *dst)
{
    uint8_t q[HK_LANES][HK_BLOCK];
    to_unsigned(src, 0, q);
    put_pairs(dst, q, 0);
    for (int half = 0; half < 2; half++) {
        put_scales(dst + PAIRS + half * SCALES, src->scale, half);
        put_scales(dst + PAIRS + (2 + half) * SCALES, src->min, half);
    }
}

static void decode_q2(const uint8_t *src, hk_tile *dst)
{
    get_pairs(src, 0, true, dst->q);
    for (int half = 0; half < 2; half++) {
        get_scales(src + PAIRS + half * SCALES, dst->scale[half]);
        get_scales(src + PAIRS + (2 + half) * SCALES, dst->min[half]);
    }
}

static void encode_f32(const float src[HK_LANES][HK_BLOCK], uint8_t *dst)
{
    for (int c = 0; c < HK_BLOCK; c++)
        for (int lane = 0; lane < HK_LANES; lane++)
            memcpy(dst + 4 * (c * HK_LANES + lane), &src[lane][c], 4);
}

static void decode_f32(const uint8_t *src, float dst[HK_BLOCK][HK_LANES])
{
    memcpy(dst, src, 4 * HK_BLOCK * HK_LANES);
}

/* Exact: the floats come from halves. */
static void encode_f16(const float src[HK_LANES][HK_BLOCK], uint8_t *dst)
{
    for (int c = 0; c < HK_BLOCK; c++)
        for (int lane = 0; lane < HK_LANES; lane++) {
            const uint16_t bits = hk_float_to_half(src[lane][c]);
            memcpy(dst + 2 * (c * HK_LANES + lane), &bits, sizeof bits);
        }
}

static void decode_f16(const uint8_t *src, float dst[HK_BLOCK][HK_LANES])
{
    for (int c = 0; c < HK_BLOCK; c++)
        get_scales(src + c * SCALES, dst[c]);
}

/* Exact: the floats come from bfloats. */
static void encode_bf16(const float src[HK_LANES][HK_BLOCK], uint8_t *dst)
{
    for (int c = 0; c < HK_BLOCK; c++)
        for (int lane = 0; lane < HK_LANES; lane++) {
            const uint16_t bits = (uint16_t)(hk_bits_of(src[lane][c]) >> 16);
            memcpy(dst + 2 * (c * HK_LANES + lane), &bits, sizeof bits);
        }
}

static void decode_bf16(const uint8_t *src, float dst[HK_BLOCK][HK_LANES])
{
    for (int c = 0; c < HK_BLOCK; c++) {
        uint16_t bits[HK_LANES];
        memcpy(bits, src + c * SCALES, sizeof bits);
        for (int lane = 0; lane < HK_LANES; lane++)
            dst[c][lane] = hk_bfloat_to_float(bits[lane]);
    }
}

const hk_layout_info hk_layout_table[HK_LAYOUTS] = {
    [HK_LAYOUT_F32X16] = {"f32x16", 2048, 0, NULL, NULL, encode_f32, decode_f32},
    [HK_LAYOUT_F16X16] = {"f16x16", 1024, 0, NULL, NULL, encode_f16, decode_f16},
    [HK_LAYOUT_BF16X16] = {"bf16x16", 1024, 0, NULL, NULL, encode_bf16, decode_bf16},
    [HK_LAYOUT_Q8X16] = {"q8x16", 544, 1, encode_q8, decode_q8, NULL, NULL},
    [HK_LAYOUT_Q4X16] = {"q4x16", 320, 1, encode_q4, decode_q4, NULL, NULL},
    [HK_LAYOUT_Q4SX16] = {"q4sx16", 288, 1, encode_q4s, decode_q4s, NULL, NULL},
    [HK_LAYOUT_Q5SX16] = {"q5sx16", 352, 1, encode_q5s, decode_q5s, NULL, NULL},
    [HK_LAYOUT_Q5X16] = {"q5x16", 384, 1, encode_q5, decode_q5, NULL, NULL},
    [HK_LAYOUT_Q6X16] = {"q6x16", 448, 2, encode_q6, decode_q6, NULL, NULL},
    [HK_LAYOUT_Q3X16] = {"q3x16", 256, 2, encode_q3, decode_q3, NULL, NULL},
    [HK_LAYOUT_Q2X16] = {"q2x16", 256, 2, encode_q2, decode_q2, NULL, NULL},
};

int64_t hk_packed_bytes(int layout, int64_t rows, int64_t columns)
{
    return hk_round_up(hk_groups(rows) * hk_blocks(columns) * hk_layout_table[layout].bytes, 64);
}

typedef struct pack_job {
    int format;
    const uint8_t *src;
    int64_t rows, columns;
    uint8_t *dst;
} pack_job;

/* Blocks [block, block + count) of one group, all inside one block of the file. */
static void pack_blocks(const pack_job *job, const hk_format_info *format, int64_t group, int64_t block,
                        int64_t count)
{
    const hk_layout_info *layout = &hk_layout_table[format->layout];
    const int64_t row_bytes = job->columns / format->elements * format->bytes;
    hk_source_tile tiles[HK_SUPER / HK_BLOCK];
    memset(tiles, 0, sizeof tiles);
    for (int lane = 0; lane < HK_LANES && group * HK_LANES + lane < job->rows; lane++) {
        hk_values values;
        const uint8_t *row = job->src + (group * HK_LANES + lane) * row_bytes;
        format->read(row + block * HK_BLOCK / format->elements * format->bytes, &values);
        for (int64_t b = 0; b < count; b++) {
            memcpy(tiles[b].q[lane], values.q + b * HK_BLOCK, HK_BLOCK);
            memcpy(tiles[b].scale[lane], values.scale + 2 * b, sizeof tiles[b].scale[lane]);
            memcpy(tiles[b].min[lane], values.min + 2 * b, sizeof tiles[b].min[lane]);
        }
    }
    uint8_t *dst = job->dst + (group * hk_blocks(job->columns) + block) * layout->bytes;
    for (int64_t b = 0; b < count; b++)
        layout->encode(&tiles[b], dst + b * layout->bytes);
}

static void pack_float_block(const pack_job *job, const hk_format_info *format, int64_t group, int64_t block)
{
    const hk_layout_info *layout = &hk_layout_table[format->layout];
    float tile[HK_LANES][HK_BLOCK] = {{0}};
    for (int lane = 0; lane < HK_LANES && group * HK_LANES + lane < job->rows; lane++)
        for (int c = 0; c < HK_BLOCK && block * HK_BLOCK + c < job->columns; c++)
            tile[lane][c] = hk_read_float(job->format, job->src, (group * HK_LANES + lane) * job->columns
                                                                    + block * HK_BLOCK + c);
    layout->encode_float((const float(*)[HK_BLOCK])tile,
                         job->dst + (group * hk_blocks(job->columns) + block) * layout->bytes);
}

static void pack_task(void *context, int part, int parts)
{
    const pack_job *job = context;
    const hk_format_info *format = hk_format_find(job->format);
    const int64_t blocks = hk_blocks(job->columns);
    int64_t first, last;
    hk_share(hk_groups(job->rows), part, parts, &first, &last);
    for (int64_t group = first; group < last; group++) {
        if (!format->read) {
            for (int64_t block = 0; block < blocks; block++)
                pack_float_block(job, format, group, block);
            continue;
        }
        const int64_t step = format->elements / HK_BLOCK;
        for (int64_t block = 0; block < blocks; block += step)
            pack_blocks(job, format, group, block, step);
    }
}

void hk_pack(hk_pool *pool, int format, const void *src, int64_t rows, int64_t columns, void *dst)
{
    pack_job job = {format, src, rows, columns, dst};
    hk_pool_run(pool, pack_task, &job);
}

void hk_unpack_row(int layout, const void *packed, int64_t columns, int64_t row, float *dst)
{
    const hk_layout_info *info = &hk_layout_table[layout];
    const int64_t blocks = hk_blocks(columns), lane = row % HK_LANES;
    const uint8_t *src = (const uint8_t *)packed + row / HK_LANES * blocks * info->bytes;
    for (int64_t block = 0; block < blocks; block++, src += info->bytes) {
        const int64_t count = hk_min(HK_BLOCK, columns - block * HK_BLOCK);
        if (info->scales == 0) {
            float tile[HK_BLOCK][HK_LANES];
            info->decode_float(src, tile);
            for (int64_t c = 0; c < count; c++)
                dst[block * HK_BLOCK + c] = tile[c][lane];
            continue;
        }
        hk_tile tile = {0};
        info->decode(src, &tile);
        for (int64_t c = 0; c < count; c++) {
            const int64_t half = c * info->scales / HK_BLOCK;
            dst[block * HK_BLOCK + c] = tile.scale[half][lane] * (float)tile.q[c][lane]
                                        + tile.min[half][lane];
        }
    }
}
