/* rails_layout.c: the layout of weights on a device that is asked for no optional feature: 32-bit words alone.
 *
 * There is one layout for all formats, so that one shader reads them: signed bytes, and floats that scale them,
 * both exactly those of the host's packed layouts. Rows are cut into groups of HK_RAILS_ROWS, columns into blocks
 * of 32, both padded with zeros, so that a tile of a product reads words that follow each other. A unit is row r
 * of block b of group g, number (g * blocks + b) * HK_RAILS_ROWS + r:
 *
 *   values   8 words (32 signed bytes, the first column lowest), or the bits of 32 floats
 *   scales   the bits of a scale and a min, twice where a scale covers 16 columns; a value is scale * byte + min
 */
#include "internal.h"

enum { BYTE_WORDS = HK_BLOCK / 4, FLOAT_WORDS = HK_BLOCK, PARTS = HK_RAILS_ROWS / HK_LANES };

static int64_t rails_groups(int64_t rows) { return (rows + HK_RAILS_ROWS - 1) / HK_RAILS_ROWS; }

int hk_rails_scales(int layout) { return hk_layout_table[layout].scales; }

static int64_t unit_words(int layout) { return hk_rails_scales(layout) ? BYTE_WORDS : FLOAT_WORDS; }

int64_t hk_rails_value_words(int layout, int64_t rows, int64_t columns)
{
    return rails_groups(rows) * HK_RAILS_ROWS * hk_blocks(columns) * unit_words(layout);
}

int64_t hk_rails_scale_words(int layout, int64_t rows, int64_t columns)
{
    return rails_groups(rows) * HK_RAILS_ROWS * hk_blocks(columns) * 2 * hk_rails_scales(layout);
}

typedef struct rails_job {
    int layout;
    const uint8_t *packed;
    int64_t rows, columns;
    uint32_t *values, *scales;
} rails_job;

/* The rows of one block of a packed group; unit: number of the first. */
static void put_quants(const rails_job *job, const uint8_t *src, int64_t unit)
{
    const hk_layout_info *layout = &hk_layout_table[job->layout];
    hk_tile tile = {0};
    layout->decode(src, &tile);
    for (int lane = 0; lane < HK_LANES; lane++) {
        int8_t bytes[HK_BLOCK];
        for (int c = 0; c < HK_BLOCK; c++)
            bytes[c] = (int8_t)tile.q[c][lane];
        memcpy(job->values + (unit + lane) * BYTE_WORDS, bytes, sizeof bytes);
        for (int i = 0; i < layout->scales; i++) {
            const float pair[2] = {tile.scale[i][lane], tile.min[i][lane]};
            memcpy(job->scales + ((unit + lane) * layout->scales + i) * 2, pair, sizeof pair);
        }
    }
}

static void put_floats(const rails_job *job, const uint8_t *src, int64_t unit)
{
    float tile[HK_BLOCK][HK_LANES];
    hk_layout_table[job->layout].decode_float(src, tile);
    for (int lane = 0; lane < HK_LANES; lane++)
        for (int c = 0; c < HK_BLOCK; c++)
            memcpy(job->values + (unit + lane) * FLOAT_WORDS + c, &tile[c][lane], sizeof(float));
}

static void rails_task(void *context, int part, int parts)
{
    const rails_job *job = context;
    const int64_t blocks = hk_blocks(job->columns), packed_groups = hk_groups(job->rows);
    const int64_t bytes = hk_layout_table[job->layout].bytes;
    const int scales = hk_rails_scales(job->layout);
    int64_t first, last;
    hk_share(rails_groups(job->rows) * PARTS, part, parts, &first, &last);
    for (int64_t group = first; group < last; group++)
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t unit = (group / PARTS * blocks + block) * HK_RAILS_ROWS + group % PARTS * HK_LANES;
            const uint8_t *src = job->packed + (group * blocks + block) * bytes;
            if (group >= packed_groups) {
                memset(job->values + unit * unit_words(job->layout), 0,
                       (size_t)(HK_LANES * unit_words(job->layout)) * sizeof(uint32_t));
                if (scales)
                    memset(job->scales + unit * scales * 2, 0, (size_t)(HK_LANES * scales * 2) * sizeof(uint32_t));
            } else if (scales) {
                put_quants(job, src, unit);
            } else {
                put_floats(job, src, unit);
            }
        }
}

void hk_rails_pack(hk_pool *pool, int layout, const void *packed, int64_t rows, int64_t columns, uint32_t *values,
                   uint32_t *scales)
{
    rails_job job = {layout, packed, rows, columns, values, scales};
    hk_pool_run(pool, rails_task, &job);
}
