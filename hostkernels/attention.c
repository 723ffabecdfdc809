/* attention.c: the walk over a sequence's tiles, the same at every level.
 *
 * A tile of K and V is decoded once for the query rows of a block and for all query heads that share the
 * K/V head. Each of these folds the tile into its own running softmax, tiles in ascending order, so
 * that a row's result is the same in whatever block it comes.
 */
#include "attention.h"

int64_t hk_attention_scratch(int heads, int head_size)
{
    const int64_t stride = hk_round_up(head_size, HK_LANES), queries = (int64_t)HK_QUERY_TILE * heads;
    return HK_PAGE * (int64_t)head_size /* keys */
           + HK_PAGE * stride           /* values */
           + 2 * queries * stride       /* rotated queries, outputs */
           + 2 * queries;               /* running softmax */
}

static void read_tile(const hk_attention_job *job, const uint8_t *page, int from, int to, float *keys,
                      float *values, int64_t stride)
{
    const hk_kernels *kernels = hk_kernels_get();
    /* Values come from memory while keys are read. */
    hk_prefetch(page + job->v_offset + from * job->row_bytes, (int)((to - from) * job->row_bytes));
    for (int s = from / HK_LANES; s * HK_LANES < to; s++)
        kernels->read_keys(job->codec, page + job->k_offset + s * HK_LANES * job->row_bytes, job->head_size,
                           keys + s * HK_LANES * job->head_size);
    for (int p = from; p < to; p++)
        kernels->read_values(job->codec, page + job->v_offset + p * job->row_bytes, job->head_size,
                             values + p * stride);
}

void hk_attention(const hk_attention_job *job, float *scratch)
{
    const hk_kernels *kernels = hk_kernels_get();
    const int64_t stride = hk_round_up(job->head_size, HK_LANES);
    const size_t head_bytes = (size_t)job->head_size * sizeof(float);
    const int queries = job->rows * job->heads;
    float *keys = scratch, *values = keys + HK_PAGE * (int64_t)job->head_size;
    float *q = values + HK_PAGE * stride, *out = q + queries * stride;
    hk_running *state = (hk_running *)(void *)(out + queries * stride);
    if (stride > job->head_size)
        memset(values, 0, HK_PAGE * (size_t)stride * sizeof *values);
    memset(out, 0, (size_t)(queries * stride) * sizeof *out);
    for (int i = 0; i < queries; i++) {
        memcpy(q + i * stride, job->q + i / job->heads * job->q_stride + i % job->heads * job->head_size,
               head_bytes);
        for (int64_t d = 0; job->key_scale && d < job->head_size; d++)
            q[i * stride + d] /= job->key_scale[d];
        hk_codec_rotate(job->codec, q + i * stride, job->head_size);
        state[i] = (hk_running){-INFINITY, 0.0f};
    }

    const hk_tile_rows tile_rows = {keys, values, stride, job->head_size};
    const int64_t first_seen = job->window ? hk_max(0, job->positions[0] - job->window + 1) : 0;
    const int64_t last_seen = job->positions[job->rows - 1];
    for (int64_t tile = first_seen / HK_PAGE; tile <= last_seen / HK_PAGE; tile++) {
        const int64_t start = tile * HK_PAGE;
        read_tile(job, job->base + job->pages[tile] * job->page_bytes, (int)hk_max(0, first_seen - start),
                  (int)hk_min(HK_PAGE, last_seen + 1 - start), keys, values, stride);
        for (int row = 0; row < job->rows; row++) {
            const int64_t position = job->positions[row];
            const int64_t lowest = job->window ? position - job->window + 1 : 0;
            const int from = (int)hk_max(0, lowest - start);
            const int to = (int)hk_min(HK_PAGE, position + 1 - start);
            const int64_t first = (int64_t)row * job->heads;
            if (from < to)
                kernels->attend(q + first * stride, job->heads, &tile_rows, from, to, job->scale, &state[first],
                                out + first * stride);
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
