/* matmul_portable.c: the truth for matmuls over quantised layouts, for any machine.
 *
 * A block of weights is decoded once to 16-bit integers and meets a tile of activation rows. Products
 * of a layout's quants with 8-bit activations are small, so that a known number of them (`TERMS`) adds
 * up exactly in 16 bits before it is widened.
 */
#include "lanes.h"

/* |quant| * 127 * TERMS stays within 16 bits. */
enum { TERMS_Q8 = 2, TERMS_Q6 = 8, TERMS_Q5 = 8, TERMS_Q4 = 16, TERMS_Q3 = 16, TERMS_Q2 = 16 };

/* Eight lanes: 16 bytes, which every compiler has a register for. gcc 14 builds the factor of a wider
 * vector in memory, element by element, and is ten times slower then. */
typedef int16_t eight_i16 __attribute__((vector_size(16)));

/* Sum over `count` columns of q[column][lane] * x[column], exactly, as floats. */
static inline hk_lanes dot_lanes(const int16_t (*q)[HK_LANES], const int8_t *x, int count, int terms)
{
    hk_lanes_i32 dot = {0};
    for (int c = 0; c < count; c += terms) {
        eight_i16 partial[HK_LANES / 8] = {{0}};
        for (int i = 0; i < terms; i++)
            for (int part = 0; part < HK_LANES / 8; part++) {
                eight_i16 column;
                memcpy(&column, q[c + i] + 8 * part, sizeof column);
                partial[part] += column * (int16_t)x[c + i];
            }
        hk_lanes_i16 lanes;
        memcpy(&lanes, partial, sizeof lanes);
        dot += __builtin_convertvector(lanes, hk_lanes_i32);
    }
    return __builtin_convertvector(dot, hk_lanes);
}

/* The whole kernel; `layout`, `halves` and `terms` are constants at each use, so that each use is a
 * kernel of its own. */
static inline void matmul_quantised(int layout, int halves, int terms, const uint8_t *group,
                                    const hk_activations *act, int64_t first_row, int64_t rows, float *out,
                                    int64_t out_stride, int lanes)
{
    const hk_layout_info *info = &hk_layout_table[layout];
    const int columns = HK_BLOCK / halves;
    for (int64_t tile_row = 0; tile_row < rows; tile_row += HK_ROW_TILE) {
        const int64_t tile_rows = hk_min(HK_ROW_TILE, rows - tile_row);
        hk_lanes total[HK_ROW_TILE] = {{0}};
        for (int s = 0; s < HK_SEGMENTS; s++) {
            hk_lanes segment[HK_ROW_TILE] = {{0}};
            const int64_t end = hk_segment_start(act->blocks, s + 1);
            for (int64_t block = hk_segment_start(act->blocks, s); block < end; block++) {
                hk_tile tile;
                memset(tile.min, 0, sizeof tile.min);
                info->decode(group + block * info->bytes, &tile);
                for (int64_t m = 0; m < tile_rows; m++) {
                    const int64_t at = (first_row + tile_row + m) * act->blocks + block;
                    const int8_t *x = act->q + at * HK_BLOCK;
                    const hk_block_scale *scale = &act->scale[at];
                    hk_lanes term = {0};
                    for (int half = 0; half < halves; half++) {
                        const float sum = halves == 1 ? scale->sum : scale->half[half];
                        const hk_lanes dot
                            = dot_lanes(tile.q + half * columns, x + half * columns, columns, terms);
                        term += lanes_load(tile.scale[half]) * dot + lanes_load(tile.min[half]) * sum;
                    }
                    segment[m] += scale->scale * term;
                }
            }
            for (int64_t m = 0; m < tile_rows; m++)
                total[m] += segment[m];
        }
        for (int64_t m = 0; m < tile_rows; m++)
            memcpy(out + (tile_row + m) * out_stride, &total[m], (size_t)lanes * sizeof(float));
    }
}

#define QUANTISED(name, layout, halves, terms)                                                             \
    static void matmul_##name##_portable(const uint8_t *group, const hk_activations *act,                  \
                                         int64_t first_row, int64_t rows, float *out, int64_t out_stride,  \
                                         int lanes)                                                        \
    {                                                                                                      \
        matmul_quantised(layout, halves, terms, group, act, first_row, rows, out, out_stride, lanes);      \
    }

QUANTISED(q8x16, HK_LAYOUT_Q8X16, 1, TERMS_Q8)
QUANTISED(q4x16, HK_LAYOUT_Q4X16, 1, TERMS_Q4)
QUANTISED(q5x16, HK_LAYOUT_Q5X16, 1, TERMS_Q5)
QUANTISED(q6x16, HK_LAYOUT_Q6X16, 2, TERMS_Q6)
QUANTISED(q3x16, HK_LAYOUT_Q3X16, 2, TERMS_Q3)
QUANTISED(q2x16, HK_LAYOUT_Q2X16, 2, TERMS_Q2)

void hk_matmul_portable(hk_kernels *kernels)
{
    kernels->matmul[HK_LAYOUT_Q8X16] = matmul_q8x16_portable;
    kernels->matmul[HK_LAYOUT_Q4X16] = matmul_q4x16_portable;
    kernels->matmul[HK_LAYOUT_Q5X16] = matmul_q5x16_portable;
    kernels->matmul[HK_LAYOUT_Q6X16] = matmul_q6x16_portable;
    kernels->matmul[HK_LAYOUT_Q3X16] = matmul_q3x16_portable;
    kernels->matmul[HK_LAYOUT_Q2X16] = matmul_q2x16_portable;
}
