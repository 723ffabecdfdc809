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
    return 2 * HK_PAGE * stride                    /* keys, values */
           + 2 * HK_PAGE                           /* their scales */
           + (HK_LANES + HK_VALUE_ROWS) * stride   /* keys and values on their way */
           + 2 * queries * stride                  /* queries, outputs */
           + 5 * queries;                          /* scales, running softmax, positions seen */
}

static hk_tile_rows lay_out_tile(const hk_attention_job *job, float *scratch)
{
    hk_tile_rows tile = {.stride = hk_round_up(job->head_size, HK_LANES), .head_size = job->head_size};
    float *keys = scratch, *values = keys + HK_PAGE * tile.stride;
    tile.keys = keys;
    tile.values = values;
    tile.scale = values + HK_PAGE * tile.stride;
    tile.strip = tile.scale + 2 * HK_PAGE;
    tile.rows = tile.strip + HK_LANES * tile.stride;
    if (tile.stride > job->head_size)
        memset(scratch, 0, (size_t)(tile.rows + HK_VALUE_ROWS * tile.stride - scratch) * sizeof *scratch);
    return tile;
}

/* The job's queries in the codec's basis, which have seen nothing yet. */
static hk_queries lay_out_queries(const hk_attention_job *job, const hk_tile_rows *tile)
{
    hk_queries queries = {.count = job->rows * job->heads, .stride = tile->stride};
    const int64_t floats = queries.count * queries.stride;
    float *q = tile->rows + HK_VALUE_ROWS * tile->stride;
    queries.q = q;
    queries.out = q + floats;
    queries.scale = queries.out + floats;
    queries.most = queries.scale + queries.count;
    queries.sum = queries.most + queries.count;
    queries.seen = (hk_seen *)(void *)(queries.sum + queries.count);
    if (queries.stride > job->head_size)
        memset(q, 0, (size_t)floats * sizeof *q);
    memset(queries.out, 0, (size_t)floats * sizeof *q);
    for (int i = 0; i < queries.count; i++, q += queries.stride) {
        memcpy(q, job->q + i / job->heads * job->q_stride + i % job->heads * job->head_size,
               (size_t)job->head_size * sizeof *q);
        for (int64_t d = 0; job->key_scale && d < job->head_size; d++)
            q[d] /= job->key_scale[d];
        hk_codec_rotate(job->codec, q, job->head_size);
        queries.most[i] = -INFINITY;
        queries.sum[i] = 0.0f;
    }
    return queries;
}

/* Those that see any of the tile from position `start` on, with what they see. */
static hk_queries look(const hk_attention_job *job, const hk_queries *all, int64_t start)
{
    /* Rows that come before the tile, and those whose window is past it, are at the block's ends. */
    int first = 0, last = job->rows;
    while (job->positions[first] < start)
        first++;
    while (job->window && job->positions[last - 1] - job->window + 1 >= start + HK_PAGE)
        last--;
    hk_seen *seen = all->seen;
    for (int row = first; row < last; row++) {
        const int64_t position = job->positions[row], lowest = job->window ? position - job->window + 1 : 0;
        const hk_seen of_row = {(int)hk_max(0, lowest - start), (int)hk_min(HK_PAGE, position + 1 - start)};
        for (int head = 0; head < job->heads; head++)
            *seen++ = of_row;
    }
    const int64_t skipped = (int64_t)first * job->heads;
    return (hk_queries){.q = (float *)all->q + skipped * all->stride,
                        .scale = all->scale + skipped,
                        .seen = all->seen,
                        .most = all->most + skipped,
                        .sum = all->sum + skipped,
                        .out = all->out + skipped * all->stride,
                        .count = (last - first) * job->heads,
                        .stride = all->stride};
}

void hk_attention(const hk_attention_job *job, float *scratch)
{
    const hk_attention_form *form = hk_kernels_get()->attention[job->codec];
    const hk_tile_rows tile_rows = lay_out_tile(job, scratch);
    const hk_queries queries = lay_out_queries(job, &tile_rows);
    form->take_queries(&queries, job->scale);

    const int64_t first_seen = job->window ? hk_max(0, job->positions[0] - job->window + 1) : 0;
    const int64_t last_seen = job->positions[job->rows - 1];
    for (int64_t tile = first_seen / HK_PAGE; tile <= last_seen / HK_PAGE; tile++) {
        const int64_t start = tile * HK_PAGE;
        const uint8_t *page = job->base + job->pages[tile] * job->page_bytes;
        form->read_tile(job->codec, page + job->k_offset, page + job->v_offset, (int)hk_max(0, first_seen - start),
                        (int)hk_min(HK_PAGE, last_seen + 1 - start), &tile_rows);
        if (tile < last_seen / HK_PAGE) /* The next keys come from memory while these are used. */
            hk_prefetch(job->base + job->pages[tile + 1] * job->page_bytes + job->k_offset,
                        (int)(HK_PAGE * job->row_bytes));
        const hk_queries looking = look(job, &queries, start);
        form->attend(&looking, &tile_rows);
    }

    for (int i = 0; i < queries.count; i++) {
        const float *gathered = queries.out + i * queries.stride, inverse = 1.0f / queries.sum[i];
        float *head = job->out + i / job->heads * job->out_stride + i % job->heads * job->head_size;
        for (int64_t d = 0; d < job->head_size; d++)
            head[d] = gathered[d] * inverse;
        hk_codec_unrotate(job->codec, head, job->head_size);
    }
}
