/* attention.c: the walk over a sequence's tiles, the same at every level.
 *
 * A tile of K and V is decoded once for the query rows of a block and for all query heads that share the
 * K/V head. Each of these folds the tile into its own running softmax. Spans of HK_SPAN positions are gathered by
 * themselves, tiles in ascending order, and then joined, in ascending order as well: so a row's result is the same
 * in whatever block it comes, and whoever gathers a span of it.
 */
#include "attention.h"

/* Floats of what `queries` gather: the greatest score, the sum of weights, the weighted sum of values. */
static int64_t state_floats(int64_t queries, int64_t stride) { return queries * (2 + stride); }

int64_t hk_attention_scratch(int heads, int head_size)
{
    const int64_t stride = hk_round_up(head_size, HK_LANES), queries = (int64_t)HK_QUERY_TILE * heads;
    return 2 * HK_PAGE * stride                    /* keys, values */
           + 2 * HK_PAGE                           /* their scales */
           + (HK_LANES + HK_VALUE_ROWS) * stride   /* keys and values on their way */
           + queries * stride                      /* queries */
           + 3 * queries                           /* scales, positions seen */
           + 2 * state_floats(queries, stride);    /* of a span, of those before */
}

int64_t hk_attention_gathered(int heads, int head_size)
{
    return state_floats(heads, hk_round_up(head_size, HK_LANES));
}

static int64_t first_seen_by(int64_t position, int window) { return window ? hk_max(0, position - window + 1) : 0; }

static int64_t first_seen(const hk_attention_job *job) { return first_seen_by(job->positions[0], job->window); }

static int64_t last_seen(const hk_attention_job *job) { return job->positions[job->rows - 1]; }

int hk_attention_spans(int64_t position, int window)
{
    return (int)(position / HK_SPAN - first_seen_by(position, window) / HK_SPAN) + 1;
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

/* Lay the job's queries out behind the tile, in the codec's basis and the form's values; return what is behind. */
static float *take_queries(const hk_attention_job *job, const hk_tile_rows *tile, hk_queries *queries)
{
    *queries = (hk_queries){.count = job->rows * job->heads, .stride = tile->stride};
    float *q = tile->rows + HK_VALUE_ROWS * tile->stride;
    queries->q = q;
    queries->scale = q + queries->count * queries->stride;
    queries->seen = (hk_seen *)(void *)(queries->scale + queries->count);
    if (queries->stride > job->head_size)
        memset(q, 0, (size_t)(queries->count * queries->stride) * sizeof *q);
    for (int i = 0; i < queries->count; i++, q += queries->stride) {
        memcpy(q, job->q + i / job->heads * job->q_stride + i % job->heads * job->head_size,
               (size_t)job->head_size * sizeof *q);
        for (int64_t d = 0; job->key_scale && d < job->head_size; d++)
            q[d] /= job->key_scale[d];
        hk_codec_rotate(job->codec, q, job->head_size);
    }
    hk_kernels_get()->attention[job->codec]->take_queries(queries, job->scale);
    return (float *)(void *)(queries->seen + queries->count);
}

/* The same queries with what they gather at `state`. */
static hk_queries at_state(const hk_queries *queries, float *state)
{
    hk_queries gathering = *queries;
    gathering.most = state;
    gathering.sum = gathering.most + queries->count;
    gathering.out = gathering.sum + queries->count;
    return gathering;
}

static void see_nothing(const hk_queries *queries)
{
    for (int i = 0; i < queries->count; i++)
        queries->most[i] = -INFINITY;
    memset(queries->sum, 0, (size_t)(queries->count * (1 + queries->stride)) * sizeof *queries->sum);
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

/* Gather a span of positions, its tiles in ascending order, for queries that have seen nothing. */
static void gather(const hk_attention_job *job, int64_t span, const hk_queries *queries, const hk_tile_rows *tile_rows)
{
    const hk_attention_form *form = hk_kernels_get()->attention[job->codec];
    const int64_t first = hk_max(first_seen(job), span * HK_SPAN);
    const int64_t last = hk_min(last_seen(job), (span + 1) * HK_SPAN - 1);
    see_nothing(queries);
    for (int64_t tile = first / HK_PAGE; tile <= last / HK_PAGE; tile++) {
        const int64_t start = tile * HK_PAGE;
        const uint8_t *page = job->base + job->pages[tile] * job->page_bytes;
        form->read_tile(job->codec, page + job->k_offset, page + job->v_offset, (int)hk_max(0, first - start),
                        (int)hk_min(HK_PAGE, last + 1 - start), tile_rows);
        if (tile < last / HK_PAGE) /* The next keys come from memory while these are used. */
            hk_prefetch(job->base + job->pages[tile + 1] * job->page_bytes + job->k_offset,
                        (int)(HK_PAGE * job->row_bytes));
        const hk_queries looking = look(job, queries, start);
        form->attend(&looking, tile_rows);
    }
}

static void put_out(const hk_attention_job *job, const hk_queries *queries)
{
    for (int i = 0; i < queries->count; i++) {
        const float *gathered = queries->out + i * queries->stride, inverse = 1.0f / queries->sum[i];
        float *head = job->out + i / job->heads * job->out_stride + i % job->heads * job->head_size;
        for (int64_t d = 0; d < job->head_size; d++)
            head[d] = gathered[d] * inverse;
        hk_codec_unrotate(job->codec, head, job->head_size);
    }
}

void hk_attention(const hk_attention_job *job, float *scratch)
{
    const hk_tile_rows tile = lay_out_tile(job, scratch);
    hk_queries queries;
    float *state = take_queries(job, &tile, &queries);
    const hk_queries all = at_state(&queries, state);
    const hk_queries part = at_state(&queries, state + state_floats(queries.count, queries.stride));
    const int64_t first = first_seen(job) / HK_SPAN;
    gather(job, first, &all, &tile);
    for (int64_t span = first + 1; span <= last_seen(job) / HK_SPAN; span++) {
        gather(job, span, &part, &tile);
        hk_kernels_get()->attention[job->codec]->join(&all, &part);
    }
    put_out(job, &all);
}

void hk_attention_gather(const hk_attention_job *job, int span, float *gathered, float *scratch)
{
    const hk_tile_rows tile = lay_out_tile(job, scratch);
    hk_queries queries;
    take_queries(job, &tile, &queries);
    const hk_queries part = at_state(&queries, gathered + span * state_floats(queries.count, queries.stride));
    gather(job, first_seen(job) / HK_SPAN + span, &part, &tile);
}

void hk_attention_join(const hk_attention_job *job, float *gathered)
{
    const hk_queries queries = {.count = job->heads, .stride = hk_round_up(job->head_size, HK_LANES)};
    const hk_queries all = at_state(&queries, gathered);
    const int64_t floats = state_floats(queries.count, queries.stride);
    for (int span = 1; span < hk_attention_spans(job->positions[0], job->window); span++) {
        const hk_queries part = at_state(&queries, gathered + span * floats);
        hk_kernels_get()->attention[job->codec]->join(&all, &part);
    }
    put_out(job, &all);
}
