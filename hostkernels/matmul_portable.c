/* matmul_portable.c: the truth for matmuls over quantised layouts, for any machine.
 *
 * A block of weights is decoded once to 16-bit integers and meets a tile of activation rows. Products
 * of a layout's quants with 8-bit activations are small, so that a known number of them (`TERMS`) adds
 * up exactly in 16 bits before it is widened.
 */
#include "lanes.h"

/* |quant| * 127 * TERMS stays within 16 bits. */
enum { TERMS_Q8 = 2, TERMS_Q6 = 8, TERMS_Q5 = 8, TERMS_Q4 = 16, TERMS_Q3 = 16, TERMS_Q2 = 16 };

/* As many 16-bit integers as a register holds. */
enum { SHORTS = 8, SHORT_PARTS = HK_LANES / SHORTS };
_Static_assert(SHORTS == 2 * LANES_WIDTH, "compiled for registers of 16 bytes");
typedef int16_t hk_i16 __attribute__((vector_size(2 * SHORTS)));

#define LOW_HALF(x) __builtin_shufflevector(x, x, 0, 1, 2, 3)
#define HIGH_HALF(x) __builtin_shufflevector(x, x, 4, 5, 6, 7)

/* Sum over `count` columns of q[column][lane] * x[column], exactly, as floats. */
static inline hk_lanes dot_lanes(const int16_t (*q)[HK_LANES], const int8_t *x, int count, int terms)
{
    hk_i32 dot[LANES_PARTS];
    LANES_EACH(i) dot[i] = (hk_i32){0};
    for (int c = 0; c < count; c += terms) {
        hk_i16 partial[SHORT_PARTS];
        for (int part = 0; part < SHORT_PARTS; part++)
            partial[part] = (hk_i16){0};
        for (int i = 0; i < terms; i++)
            for (int part = 0; part < SHORT_PARTS; part++) {
                hk_i16 column;
                memcpy(&column, q[c + i] + part * SHORTS, sizeof column);
                partial[part] += column * (int16_t)x[c + i];
            }
        for (int part = 0; part < SHORT_PARTS; part++) {
            dot[2 * part] += __builtin_convertvector(LOW_HALF(partial[part]), hk_i32);
            dot[2 * part + 1] += __builtin_convertvector(HIGH_HALF(partial[part]), hk_i32);
        }
    }
    hk_lanes lanes;
    LANES_EACH(i) lanes.part[i] = __builtin_convertvector(dot[i], hk_f32);
    return lanes;
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
        hk_lanes total[HK_ROW_TILE], segment[HK_ROW_TILE];
        for (int64_t m = 0; m < tile_rows; m++)
            total[m] = lanes_zero();
        for (int s = 0; s < HK_SEGMENTS; s++) {
            for (int64_t m = 0; m < tile_rows; m++)
                segment[m] = lanes_zero();
            const int64_t end = hk_segment_start(act->blocks, s + 1);
            for (int64_t block = hk_segment_start(act->blocks, s); block < end; block++) {
                hk_tile tile;
                memset(tile.min, 0, sizeof tile.min);
                info->decode(group + block * info->bytes, &tile);
                for (int64_t m = 0; m < tile_rows; m++) {
                    const int64_t at = (first_row + tile_row + m) * act->blocks + block;
                    const int8_t *x = act->q + at * HK_BLOCK;
                    const hk_block_scale *scale = &act->scale[at];
                    hk_lanes term = lanes_zero();
                    for (int half = 0; half < halves; half++) {
                        const float sum = halves == 1 ? scale->sum : scale->half[half];
                        const hk_lanes dot
                            = dot_lanes(tile.q + half * columns, x + half * columns, columns, terms);
                        term = lanes_mul_add(lanes_load(tile.scale[half]), dot, term);
                        term = lanes_mul_add(lanes_load(tile.min[half]), lanes_splat(sum), term);
                    }
                    segment[m] = lanes_mul_add(lanes_splat(scale->scale), term, segment[m]);
                }
            }
            for (int64_t m = 0; m < tile_rows; m++)
                total[m] = lanes_add(total[m], segment[m]);
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
QUANTISED(q4sx16, HK_LAYOUT_Q4SX16, 1, TERMS_Q4)
QUANTISED(q5sx16, HK_LAYOUT_Q5SX16, 1, TERMS_Q5)
QUANTISED(q6x16, HK_LAYOUT_Q6X16, 2, TERMS_Q6)
QUANTISED(q3x16, HK_LAYOUT_Q3X16, 2, TERMS_Q3)
QUANTISED(q2x16, HK_LAYOUT_Q2X16, 2, TERMS_Q2)

void hk_matmul_portable(hk_kernels *kernels)
{
    kernels->matmul[HK_LAYOUT_Q8X16] = matmul_q8x16_portable;
    kernels->matmul[HK_LAYOUT_Q4X16] = matmul_q4x16_portable;
    kernels->matmul[HK_LAYOUT_Q5X16] = matmul_q5x16_portable;
    kernels->matmul[HK_LAYOUT_Q4SX16] = matmul_q4sx16_portable;
    kernels->matmul[HK_LAYOUT_Q5SX16] = matmul_q5sx16_portable;
    kernels->matmul[HK_LAYOUT_Q6X16] = matmul_q6x16_portable;
    kernels->matmul[HK_LAYOUT_Q3X16] = matmul_q3x16_portable;
    kernels->matmul[HK_LAYOUT_Q2X16] = matmul_q2x16_portable;
}
