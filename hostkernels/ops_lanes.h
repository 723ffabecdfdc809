/* ops_lanes.h: the small ops of a step and matmuls with float weights, written once over lanes; attention beside
 * them, in attention_lanes.h.
 *
 * Each level's file includes it after defining OPS_LEVEL, its name, and compiles it with its own flags.
 * Sums run over sixteen partial sums, added in one fixed tree; a level may contract a product and a sum
 * into one rounding, the same everywhere.
 */
#include "lanes.h"

#define OPS_JOIN_(a, b) a##_##b
#define OPS_JOIN(a, b) OPS_JOIN_(a, b)
#define OPS_NAME(name) OPS_JOIN(name, OPS_LEVEL)
#define OPS_STRING_(name) #name
#define OPS_STRING(name) OPS_STRING_(name)

static void OPS_NAME(quantise)(const float *x, int64_t blocks, int8_t *q, hk_block_scale *scale)
{
    for (int64_t block = 0; block < blocks; block++, x += HK_BLOCK, q += HK_BLOCK) {
        const hk_lanes half[2] = {lanes_load(x), lanes_load(x + HK_HALF)};
        const float most = lanes_most(lanes_max(lanes_abs(half[0]), lanes_abs(half[1])));
        const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
        int32_t sum[2];
        for (int h = 0; h < 2; h++) {
            hk_i32 rounded[LANES_PARTS];
            LANES_EACH(i)
            {
                const hk_f32 scaled = half[h].part[i] * inverse;
                /* NaN and infinity become 0; their block's scale, or its neighbours, tell of them. */
                rounded[i] = round_f32(select_f32(abs_f32(scaled) <= 127.5f, scaled, (hk_f32){0}));
                const hk_i8 bytes = __builtin_convertvector(rounded[i], hk_i8);
                memcpy(q + h * HK_HALF + i * LANES_WIDTH, &bytes, sizeof bytes);
            }
            sum[h] = lanes_sum_i32(rounded);
        }
        scale[block] = (hk_block_scale){most / 127.0f, (float)(sum[0] + sum[1]), {(float)sum[0], (float)sum[1]}};
    }
}

static void OPS_NAME(norm)(const float *x, const float *weight, int64_t width, float eps, float *out)
{
    const int64_t whole = width / HK_LANES * HK_LANES;
    hk_lanes partial = lanes_zero();
    for (int64_t i = 0; i < whole; i += HK_LANES)
        partial = lanes_mul_add(lanes_load(x + i), lanes_load(x + i), partial);
    float rest[HK_LANES] = {0};
    for (int64_t i = whole; i < width; i++)
        rest[i - whole] = x[i];
    partial = lanes_mul_add(lanes_load(rest), lanes_load(rest), partial);
    const float scale = 1.0f / sqrtf(lanes_sum(partial) / (float)width + eps);
    for (int64_t i = 0; i < whole; i += HK_LANES)
        lanes_store(out + i, lanes_mul(lanes_mul(lanes_load(x + i), lanes_splat(scale)), lanes_load(weight + i)));
    for (int64_t i = whole; i < width; i++)
        out[i] = x[i] * scale * weight[i];
}

static inline hk_f32 OPS_NAME(sigmoid)(hk_f32 x) { return 1.0f / (1.0f + exp_f32(-x)); }

static void OPS_NAME(gate)(int activation, const float *gate, const float *up, int64_t count, float *out)
{
    for (int64_t at = 0; at < count; at += HK_LANES) {
        hk_lanes lanes = lanes_load(gate + at);
        LANES_EACH(i)
        {
            const hk_f32 x = lanes.part[i];
            /* GELU by tanh: (1 + tanh(y)) / 2 = sigmoid(2y), y = sqrt(2 / pi) * (x + 0.044715 x^3). */
            const hk_f32 y = 1.59576912160573071176f * x * (1.0f + 0.044715f * x * x);
            lanes.part[i] = x * OPS_NAME(sigmoid)(activation == HK_GELU ? y : x);
        }
        lanes_store(out + at, lanes_mul(lanes, lanes_load(up + at)));
    }
}

static void OPS_NAME(add)(const float *a, const float *b, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i += HK_LANES)
        lanes_store(out + i, lanes_add(lanes_load(a + i), lanes_load(b + i)));
}

static void OPS_NAME(rope)(float *head, const float *table, int pairs, bool interleaved)
{
    const float *cosine = table, *sine = table + pairs;
    const int step = interleaved ? 2 : 1, other = interleaved ? 1 : pairs;
    for (int i = 0; i < pairs; i++) {
        float *a = head + i * step, *b = a + other;
        const float x = *a, y = *b;
        *a = x * cosine[i] - y * sine[i];
        *b = x * sine[i] + y * cosine[i];
    }
}

#include "attention_lanes.h"

/* ---- Matmuls with float weights ------------------------------------------------------------------ */

static inline hk_lanes OPS_NAME(column)(int layout, const uint8_t *block, int c)
{
    if (layout == HK_LAYOUT_F32X16)
        return lanes_load((const float *)(const void *)block + c * HK_LANES);
    return layout == HK_LAYOUT_F16X16 ? lanes_of_halves(block + 2 * c * HK_LANES)
                                      : lanes_of_bfloats(block + 2 * c * HK_LANES);
}

/* Terms are added column by column, segment by segment; `layout` is a constant at each use. */
static inline void OPS_NAME(matmul_float)(int layout, const uint8_t *group, const hk_activations *act,
                                          int64_t first_row, int64_t rows, float *out, int64_t out_stride,
                                          int lanes)
{
    const int64_t bytes = hk_layout_table[layout].bytes;
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
                hk_lanes weights[HK_BLOCK];
                for (int c = 0; c < HK_BLOCK; c++)
                    weights[c] = OPS_NAME(column)(layout, group + block * bytes, c);
                for (int64_t m = 0; m < tile_rows; m++) {
                    const float *x = act->x + (first_row + tile_row + m) * act->x_stride + block * HK_BLOCK;
                    hk_lanes sum = segment[m];
                    for (int c = 0; c < HK_BLOCK; c++)
                        sum = lanes_mul_add(weights[c], lanes_splat(x[c]), sum);
                    segment[m] = sum;
                }
            }
            for (int64_t m = 0; m < tile_rows; m++)
                total[m] = lanes_add(total[m], segment[m]);
        }
        for (int64_t m = 0; m < tile_rows; m++)
            memcpy(out + (tile_row + m) * out_stride, &total[m], (size_t)lanes * sizeof(float));
    }
}

#define OPS_FLOAT_KERNEL(name, layout)                                                                     \
    static void OPS_NAME(name)(const uint8_t *group, const hk_activations *act, int64_t first_row,         \
                               int64_t rows, float *out, int64_t out_stride, int lanes)                    \
    {                                                                                                      \
        OPS_NAME(matmul_float)(layout, group, act, first_row, rows, out, out_stride, lanes);               \
    }

OPS_FLOAT_KERNEL(matmul_f32x16, HK_LAYOUT_F32X16)
OPS_FLOAT_KERNEL(matmul_f16x16, HK_LAYOUT_F16X16)
OPS_FLOAT_KERNEL(matmul_bf16x16, HK_LAYOUT_BF16X16)

void OPS_NAME(hk_ops)(hk_kernels *kernels)
{
    kernels->matmul[HK_LAYOUT_F32X16] = OPS_NAME(matmul_f32x16);
    kernels->matmul[HK_LAYOUT_F16X16] = OPS_NAME(matmul_f16x16);
    kernels->matmul[HK_LAYOUT_BF16X16] = OPS_NAME(matmul_bf16x16);
    kernels->level = OPS_STRING(OPS_LEVEL);
    kernels->quantise = OPS_NAME(quantise);
    kernels->norm = OPS_NAME(norm);
    kernels->gate = OPS_NAME(gate);
    kernels->add = OPS_NAME(add);
    kernels->rope = OPS_NAME(rope);
    kernels->read_keys = OPS_NAME(read_keys);
    kernels->read_values = OPS_NAME(read_values);
    for (int codec = 0; codec < HK_KV_CODECS; codec++)
        kernels->attention[codec] = &OPS_NAME(attention);
}
