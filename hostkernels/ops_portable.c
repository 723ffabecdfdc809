/* ops_portable.c: the small ops of a step, in plain C. Sums run over HK_VECTOR partial sums, added in
 * one fixed tree, so that compilers can vectorise them without changing a bit. */
#include "internal.h"

static inline float add_partials(hk_lanes_f32 partial)
{
    float sum[HK_VECTOR];
    memcpy(sum, &partial, sizeof sum);
    for (int width = HK_VECTOR / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            sum[i] += sum[i + width];
    return sum[0];
}

static void quantise_portable(const float *x, int64_t blocks, int8_t *q, float *scale, float *sum)
{
    for (int64_t block = 0; block < blocks; block++, x += HK_BLOCK, q += HK_BLOCK) {
        float most = 0.0f;
        for (int i = 0; i < HK_BLOCK; i++) {
            const float magnitude = fabsf(x[i]);
            most = magnitude > most ? magnitude : most;
        }
        const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
        scale[block] = most / 127.0f;
        int32_t total[2] = {0, 0};
        for (int i = 0; i < HK_BLOCK; i++) {
            const float scaled = x[i] * inverse;
            const float inside = fabsf(scaled) <= 127.5f ? scaled : 0.0f; /* NaN and infinity: 0 */
            const int32_t rounded = (int32_t)(inside + (inside < 0.0f ? -0.5f : 0.5f));
            q[i] = (int8_t)rounded;
            total[i / HK_HALF] += rounded;
        }
        sum[2 * block] = (float)total[0];
        sum[2 * block + 1] = (float)total[1];
    }
}

static void norm_portable(const float *x, const float *weight, int64_t width, float eps, float *out)
{
    hk_lanes_f32 partial = {0};
    int64_t i = 0;
    for (; i + HK_VECTOR <= width; i += HK_VECTOR) {
        const hk_lanes_f32 lanes = hk_load_lanes(x + i);
        partial += lanes * lanes;
    }
    for (int lane = 0; i < width; i++, lane++)
        partial[lane] += x[i] * x[i];
    const float scale = 1.0f / sqrtf(add_partials(partial) / (float)width + eps);
    for (i = 0; i < width; i++)
        out[i] = x[i] * scale * weight[i];
}

static float sigmoid(float x) { return 1.0f / (1.0f + hk_exp(-x)); }

static void gate_portable(int activation, const float *gate, const float *up, int64_t count, float *out)
{
    if (activation == HK_SILU) {
        for (int64_t i = 0; i < count; i++)
            out[i] = gate[i] * sigmoid(gate[i]) * up[i];
        return;
    }
    /* GELU by tanh: (1 + tanh(y)) / 2 = sigmoid(2y), y = sqrt(2 / pi) * (x + 0.044715 x^3). */
    for (int64_t i = 0; i < count; i++) {
        const float x = gate[i];
        const float y = 0.79788456080286535588f * x * (1.0f + 0.044715f * x * x);
        out[i] = x * sigmoid(2.0f * y) * up[i];
    }
}

static void add_portable(const float *a, const float *b, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = a[i] + b[i];
}

/* table: cosines of all pairs, then their sines. */
static void rope_portable(float *head, const float *table, int pairs, bool interleaved)
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

/* ---- Attention --------------------------------------------------------------------------------- */

/* The running softmax of one query head, and its weighted values. */
typedef struct running {
    float most;
    float sum;
} running;

int64_t hk_attention_scratch(int heads, int head_size)
{
    const int64_t stride = hk_round_up(head_size, HK_VECTOR), queries = (int64_t)HK_QUERY_TILE * heads;
    return 2 * HK_PAGE * stride       /* decoded keys and values */
           + 2 * queries * stride     /* rotated queries, outputs */
           + 2 * queries              /* running */
           + stride;                  /* one tile's weighted values */
}

static inline float dot(const float *a, const float *b, int64_t stride)
{
    hk_lanes_f32 partial = {0};
    for (int64_t i = 0; i < stride; i += HK_VECTOR)
        partial += hk_load_lanes(a + i) * hk_load_lanes(b + i);
    return add_partials(partial);
}

/* Let one query see positions [from, to) of the decoded tile and fold them into its running softmax. */
static void attend_tile(const float *q, const float *keys, const float *values, int from, int to,
                        int64_t stride, float scale, float *weighted, running *state, float *out)
{
    float score[HK_PAGE];
    float most = -INFINITY;
    for (int p = from; p < to; p++) {
        score[p] = scale * dot(q, keys + p * stride, stride);
        most = score[p] > most ? score[p] : most;
    }
    float sum = 0.0f;
    memset(weighted, 0, (size_t)stride * sizeof *weighted);
    for (int p = from; p < to; p++) {
        const float weight = hk_exp(score[p] - most);
        const float *value = values + p * stride;
        sum += weight;
        for (int64_t d = 0; d < stride; d++)
            weighted[d] += weight * value[d];
    }
    const float top = most > state->most ? most : state->most;
    const float keep = hk_exp(state->most - top), take = hk_exp(most - top);
    state->sum = state->sum * keep + sum * take;
    state->most = top;
    for (int64_t d = 0; d < stride; d++)
        out[d] = out[d] * keep + weighted[d] * take;
}

static void attention_portable(const hk_attention_job *job, float *scratch)
{
    const int64_t stride = hk_round_up(job->head_size, HK_VECTOR);
    const size_t head_bytes = (size_t)job->head_size * sizeof(float);
    const int queries = job->rows * job->heads;
    float *keys = scratch, *values = keys + HK_PAGE * stride;
    float *q = values + HK_PAGE * stride, *out = q + queries * stride;
    float *weighted = out + queries * stride;
    running *state = (running *)(void *)(weighted + stride);
    if (stride > job->head_size)
        memset(keys, 0, 2 * HK_PAGE * (size_t)stride * sizeof *keys);
    memset(q, 0, 2 * (size_t)(queries * stride) * sizeof *q);
    for (int i = 0; i < queries; i++) {
        memcpy(q + i * stride, job->q + i / job->heads * job->q_stride + i % job->heads * job->head_size,
               head_bytes);
        hk_codec_rotate(job->codec, q + i * stride, job->head_size);
        state[i] = (running){-INFINITY, 0.0f};
    }

    const int64_t first_seen = job->window ? hk_max(0, job->positions[0] - job->window + 1) : 0;
    const int64_t last_seen = job->positions[job->rows - 1];
    for (int64_t tile = first_seen / HK_PAGE; tile <= last_seen / HK_PAGE; tile++) {
        const int64_t start = tile * HK_PAGE;
        const uint8_t *page = job->base + job->pages[tile] * job->page_bytes;
        const int from = (int)hk_max(0, first_seen - start);
        const int to = (int)hk_min(HK_PAGE, last_seen + 1 - start);
        for (int p = from; p < to; p++) {
            hk_codec_read(job->codec, page + job->k_offset + p * job->row_bytes, job->head_size,
                          keys + p * stride);
            hk_codec_read(job->codec, page + job->v_offset + p * job->row_bytes, job->head_size,
                          values + p * stride);
        }
        for (int i = 0; i < queries; i++) {
            const int64_t position = job->positions[i / job->heads];
            const int64_t lowest = job->window ? position - job->window + 1 : 0;
            const int seen_from = (int)hk_max(0, lowest - start);
            const int seen_to = (int)hk_min(HK_PAGE, position + 1 - start);
            if (seen_from < seen_to)
                attend_tile(q + i * stride, keys, values, seen_from, seen_to, stride, job->scale, weighted,
                            &state[i], out + i * stride);
        }
    }

    for (int i = 0; i < queries; i++) {
        float *head = out + i * stride;
        const float inverse = 1.0f / state[i].sum;
        for (int64_t d = 0; d < job->head_size; d++)
            head[d] *= inverse;
        hk_codec_unrotate(job->codec, head, job->head_size);
        memcpy(job->out + i / job->heads * job->out_stride + i % job->heads * job->head_size, head,
               head_bytes);
    }
}

void hk_matmul_portable(hk_kernels *kernels);

void hk_kernels_portable(hk_kernels *kernels)
{
    kernels->level = "portable";
    kernels->quantise = quantise_portable;
    kernels->attention = attention_portable;
    kernels->norm = norm_portable;
    kernels->gate = gate_portable;
    kernels->add = add_portable;
    kernels->rope = rope_portable;
    hk_matmul_portable(kernels);
}
