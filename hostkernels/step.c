/* step.c: a compiled plan and its runner.
 *
 * A step enters once. Every thread walks the ops in order and does its share of each; an op that
 * needs the results of earlier ones says so (`wait`), and only there the threads meet. Nothing is
 * allocated in a step.
 */
#include "attention.h"
#include "pages.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

/* Spans of attention that threads may share in an op, at most. */
enum { SPANS = 512 };

typedef struct buffer {
    int kind;
    int64_t width;
    int64_t stride; /* floats from row to row */
    float *x;
    int8_t *q;      /* quantised: the planes of hk_activations */
    hk_block_scale *scale;
} buffer;

/* The part of a store's vectors that is one head's. */
static const float *of_head(const float *vectors, int64_t head, int64_t floats)
{
    return vectors ? vectors + head * floats : NULL;
}

/* Rows of one sequence that attend together. */
typedef struct query_block {
    int32_t first;
    int32_t rows;
} query_block;

struct hk_model {
    hk_pool *pool;
    hk_op *ops;
    int op_count;
    buffer *buffers;
    int buffer_count;
    hk_weight *weights;
    const float **vectors;
    hk_rope *ropes;
    int rope_count;
    hk_pages pages;
    float *scratch;         /* one part per thread */
    int64_t scratch_floats; /* of one part */
    query_block *blocks;
    int block_count;
    float *gathered;        /* (SPANS) of attention, what each has gathered */
    int64_t gathered_floats; /* of one */
    atomic_int *spans_done; /* (SPANS) of a row and K/V head */
    int fewest_heads;       /* of K/V that any attention reads */
    const hk_step *step;
    const hk_segment *segment; /* of a step that is run in parts */
    hk_op_time *times; /* of a step that is profiled */
};

/* ---- Creation ---------------------------------------------------------------------------------- */

/* A copy of `count` items, never NULL unless memory is out. */
static void *copy_of(const void *src, int64_t count, size_t size)
{
    void *copy = malloc((size_t)count * size + 1);
    if (copy && count > 0)
        memcpy(copy, src, (size_t)count * size);
    return copy;
}

static void *zeroed(int64_t count, size_t size)
{
    void *memory = NULL;
    const size_t bytes = (size_t)hk_max(count, 1) * size;
    if (posix_memalign(&memory, 64, bytes) != 0)
        return NULL;
    return memset(memory, 0, bytes);
}

static bool create_buffer(buffer *self, const hk_buffer *spec, int64_t max_rows)
{
    const int64_t blocks = hk_blocks(spec->width);
    self->kind = spec->kind;
    self->width = spec->width;
    if (spec->kind == HK_BUFFER_LOGITS) {
        self->stride = spec->width;
        return true;
    }
    self->stride = blocks * HK_BLOCK;
    if (spec->kind == HK_BUFFER_HIDDEN)
        return true;
    if (spec->kind == HK_BUFFER_FLOAT)
        return (self->x = zeroed(max_rows * self->stride, sizeof *self->x)) != NULL;
    self->q = zeroed(max_rows * self->stride, sizeof *self->q);
    self->scale = zeroed(max_rows * blocks, sizeof *self->scale);
    return self->q && self->scale;
}

static bool create_ropes(hk_model *self, const hk_model_spec *spec)
{
    self->ropes = copy_of(spec->ropes, spec->rope_count, sizeof *self->ropes);
    if (!self->ropes)
        return false;
    for (; self->rope_count < spec->rope_count; self->rope_count++) {
        hk_rope *rope = &self->ropes[self->rope_count];
        rope->frequencies = copy_of(rope->frequencies, rope->pairs, sizeof *rope->frequencies);
        if (!rope->frequencies)
            return false;
    }
    return true;
}

static bool create_scratch(hk_model *self, const hk_model_spec *spec)
{
    self->fewest_heads = INT_MAX;
    for (int i = 0; i < spec->op_count; i++) {
        const hk_op *op = &spec->ops[i];
        if (op->kind == HK_OP_ATTENTION) {
            const int heads = spec->stores[op->store].heads;
            const int64_t floats = hk_attention_scratch(op->heads / heads, op->head_size);
            self->scratch_floats = hk_max(self->scratch_floats, hk_round_up(floats, HK_LANES));
            self->fewest_heads = (int)hk_min(self->fewest_heads, heads);
            self->gathered_floats = hk_max(self->gathered_floats,
                                           hk_attention_gathered(op->heads / heads, op->head_size));
        }
        if (op->kind == HK_OP_STORE)
            self->scratch_floats = hk_max(self->scratch_floats,
                                          hk_round_up(spec->stores[op->store].head_size, HK_LANES));
        if (op->kind == HK_OP_NORM)
            self->scratch_floats = hk_max(self->scratch_floats,
                                          hk_round_up(spec->buffers[op->src].width, HK_BLOCK));
    }
    self->scratch = zeroed(self->scratch_floats * hk_pool_threads(self->pool), sizeof *self->scratch);
    self->blocks = zeroed(spec->max_rows, sizeof *self->blocks);
    self->gathered = zeroed(SPANS * self->gathered_floats, sizeof *self->gathered);
    self->spans_done = zeroed(SPANS, sizeof *self->spans_done);
    return self->scratch && self->blocks && self->gathered && self->spans_done;
}

hk_model *hk_model_create(const hk_model_spec *spec, hk_pool *pool)
{
    hk_model *self = zeroed(1, sizeof *self);
    if (!self)
        return NULL;
    self->pool = pool;
    self->op_count = spec->op_count;
    self->ops = copy_of(spec->ops, spec->op_count, sizeof *self->ops);
    self->weights = copy_of(spec->weights, spec->weight_count, sizeof *self->weights);
    self->vectors = copy_of(spec->vectors, spec->vector_count, sizeof *self->vectors);
    self->buffers = zeroed(spec->buffer_count, sizeof *self->buffers);
    bool ok = self->ops && self->weights && self->vectors && self->buffers;
    for (; ok && self->buffer_count < spec->buffer_count; self->buffer_count++)
        ok = create_buffer(&self->buffers[self->buffer_count], &spec->buffers[self->buffer_count],
                           spec->max_rows);
    if (!ok || !create_ropes(self, spec) || !hk_pages_create(&self->pages, spec) || !create_scratch(self, spec)) {
        hk_model_destroy(self);
        return NULL;
    }
    return self;
}

void hk_model_destroy(hk_model *self)
{
    if (!self)
        return;
    for (int i = 0; i < self->buffer_count; i++) {
        free(self->buffers[i].x);
        free(self->buffers[i].q);
        free(self->buffers[i].scale);
    }
    for (int i = 0; i < self->rope_count; i++)
        free((void *)self->ropes[i].frequencies);
    hk_pages_destroy(&self->pages);
    free(self->ops);
    free(self->weights);
    free((void *)self->vectors);
    free(self->buffers);
    free(self->ropes);
    free(self->scratch);
    free(self->blocks);
    free(self->gathered);
    free(self->spans_done);
    free(self);
}

/* ---- Ops: each does part `part` of `parts` ------------------------------------------------------- */

static float *float_rows(const hk_model *model, int32_t id)
{
    const buffer *self = &model->buffers[id];
    if (self->kind == HK_BUFFER_HIDDEN)
        return model->step->hidden;
    return self->kind == HK_BUFFER_LOGITS ? model->step->logits : self->x;
}

static float *float_row(const hk_model *model, int32_t id, int64_t row)
{
    return float_rows(model, id) + row * model->buffers[id].stride;
}

static const int32_t *page_table(const hk_step *step, int64_t row)
{
    return step->pages + (int64_t)step->sequences[row] * step->page_columns;
}

static void run_embed(const hk_model *model, const hk_op *op, int64_t rows, int part, int parts)
{
    const hk_weight *weight = &model->weights[op->weight];
    int64_t first, last;
    hk_share(rows, part, parts, &first, &last);
    for (int64_t row = first; row < last; row++) {
        float *out = float_row(model, op->out, row);
        hk_unpack_row(weight->layout, weight->data, weight->columns, model->step->tokens[row], out);
        for (int64_t i = 0; i < weight->columns; i++)
            out[i] *= op->scale;
    }
}

/* A quantised result takes whole rows: each is normed into the thread's scratch first. */
static void run_norm(const hk_model *model, const hk_op *op, int64_t rows, int part, int parts)
{
    const hk_kernels *kernels = hk_kernels_get();
    const buffer *out = &model->buffers[op->out];
    const int64_t width = model->buffers[op->src].width / op->heads;
    float *scratch = model->scratch + part * model->scratch_floats;
    int64_t first, last;
    hk_share(rows * op->heads, part, parts, &first, &last);
    for (int64_t item = first; item < last; item++) {
        const int64_t row = item / op->heads, at = item % op->heads * width;
        const float *x = float_row(model, op->src, row) + at;
        if (out->kind != HK_BUFFER_QUANTISED) {
            kernels->norm(x, model->vectors[op->vector], width, op->eps, float_row(model, op->out, row) + at);
            continue;
        }
        kernels->norm(x, model->vectors[op->vector], width, op->eps, scratch);
        memset(scratch + width, 0, (size_t)(out->stride - width) * sizeof *scratch);
        kernels->quantise(scratch, hk_blocks(width), out->q + row * out->stride,
                          out->scale + row * hk_blocks(width));
    }
}

static void run_quantise(const hk_model *model, const hk_op *op, int64_t rows, int part, int parts)
{
    const buffer *out = &model->buffers[op->out];
    const int64_t blocks = hk_blocks(out->width);
    int64_t first, last;
    hk_share(rows * blocks, part, parts, &first, &last);
    while (first < last) {
        const int64_t row = first / blocks, block = first % blocks;
        const int64_t count = hk_min(blocks - block, last - first);
        hk_kernels_get()->quantise(float_row(model, op->src, row) + block * HK_BLOCK, count,
                                   out->q + first * HK_BLOCK, out->scale + first);
        first += count;
    }
}

/* Add one value of each lane, the same to every row (bias) or row by row (residual, as wide as out). */
static void add_lanes(float *out, int64_t out_stride, const float *values, int64_t stride, int64_t rows,
                      int lanes)
{
    for (int64_t row = 0; row < rows; row++)
        for (int lane = 0; lane < lanes; lane++)
            out[row * out_stride + lane] += values[row * stride + lane];
}

static void matmul_groups(const hk_weight *weight, const hk_activations *act, const float *bias,
                          const float *residual, int64_t rows, float *out, int64_t out_stride, int part,
                          int parts)
{
    const int64_t group_bytes = hk_blocks(weight->columns) * hk_layout_table[weight->layout].bytes;
    const hk_matmul_kernel kernel = hk_kernels_get()->matmul[weight->layout];
    int64_t first, last;
    hk_share(hk_groups(weight->rows), part, parts, &first, &last);
    for (int64_t group = first; group < last; group++) {
        const int lanes = (int)hk_min(HK_LANES, weight->rows - group * HK_LANES);
        const uint8_t *packed = (const uint8_t *)weight->data + group * group_bytes;
        float *column = out + group * HK_LANES;
        if (!residual) {
            kernel(packed, act, 0, rows, column, out_stride, lanes);
            if (bias)
                add_lanes(column, out_stride, bias + group * HK_LANES, 0, rows, lanes);
            continue;
        }
        for (int64_t row = 0; row < rows; row += HK_ROW_TILE) {
            const int64_t count = hk_min(HK_ROW_TILE, rows - row);
            float product[HK_ROW_TILE * HK_LANES];
            kernel(packed, act, row, count, product, HK_LANES, lanes);
            if (bias)
                add_lanes(product, HK_LANES, bias + group * HK_LANES, 0, count, lanes);
            add_lanes(product, HK_LANES, residual + row * out_stride + group * HK_LANES, out_stride, count, lanes);
            for (int64_t m = 0; m < count; m++)
                memcpy(column + (row + m) * out_stride, product + m * HK_LANES, (size_t)lanes * sizeof(float));
        }
    }
}

static hk_activations activations_of(const hk_model *model, int32_t id)
{
    const buffer *self = &model->buffers[id];
    return (hk_activations){hk_blocks(self->width), self->q, self->scale, float_rows(model, id), self->stride};
}

static void run_matmul(const hk_model *model, const hk_op *op, int64_t rows, int part, int parts)
{
    const hk_activations act = activations_of(model, op->src);
    matmul_groups(&model->weights[op->weight], &act, op->vector < 0 ? NULL : model->vectors[op->vector],
                  op->src2 < 0 ? NULL : float_rows(model, op->src2), rows, float_rows(model, op->out),
                  model->buffers[op->out].stride, part, parts);
}

static void run_rope_table(const hk_model *model, const hk_op *op, int64_t rows, int part, int parts)
{
    const hk_rope *rope = &model->ropes[op->rope];
    int64_t first, last;
    hk_share(rows, part, parts, &first, &last);
    for (int64_t row = first; row < last; row++) {
        float *cosine = float_row(model, op->out, row), *sine = cosine + rope->pairs;
        for (int i = 0; i < rope->pairs; i++) {
            const double angle = (double)model->step->positions[row] * rope->frequencies[i];
            cosine[i] = (float)cos(angle) * rope->magnitude;
            sine[i] = (float)sin(angle) * rope->magnitude;
        }
    }
}

/* Turn one head of a row by the op's table. */
static void turn_head(const hk_model *model, const hk_op *op, float *head, int64_t row)
{
    const hk_rope *rope = &model->ropes[op->rope];
    hk_kernels_get()->rope(head, float_row(model, op->table, row), rope->pairs, rope->interleaved != 0);
}

static void run_rope(const hk_model *model, const hk_op *op, int64_t rows, int part, int parts)
{
    int64_t first, last;
    hk_share(rows * op->heads, part, parts, &first, &last);
    for (int64_t item = first; item < last; item++) {
        const int64_t row = item / op->heads;
        turn_head(model, op, float_row(model, op->out, row) + item % op->heads * op->head_size, row);
    }
}

static void run_store(const hk_model *model, const hk_op *op, int64_t rows, int part, int parts)
{
    const hk_step *step = model->step;
    const hk_pages *pages = &model->pages;
    const hk_page_store *self = &pages->stores[op->store];
    const int64_t feedback = (int64_t)self->head_size * (self->head_size - 1) / 2; /* floats of a head */
    uint8_t *key = (uint8_t *)(model->scratch + part * model->scratch_floats);
    int64_t first, last;
    hk_share(rows * self->heads, part, parts, &first, &last);
    for (int64_t item = first; item < last; item++) {
        const int64_t row = item / self->heads, head = item % self->heads, at = head * self->head_size;
        const int32_t position = step->positions[row], inside = position % HK_PAGE;
        uint8_t *keys = hk_page_keys(pages, self, page_table(step, row)[position / HK_PAGE], head);
        float *k = float_row(model, op->src, row) + at;
        if (op->rope >= 0)
            turn_head(model, op, k, row);
        hk_codec_encode(pages->codec, k, self->head_size, of_head(self->key_scale, head, self->head_size),
                        of_head(self->key_feedback, head, feedback), key);
        hk_strip_put(pages->codec, key, self->head_size, inside % HK_LANES, hk_page_strip(self, keys, inside));
        hk_codec_encode(pages->codec, float_row(model, op->src2, row) + at, self->head_size, NULL, NULL,
                        keys + hk_page_values(self) + inside * self->row_bytes);
    }
}

static hk_attention_job attention_job(const hk_model *model, const hk_op *op, const query_block *block, int64_t head)
{
    const hk_step *step = model->step;
    const hk_pages *pages = &model->pages;
    const hk_page_store *self = &pages->stores[op->store];
    const int heads = op->heads / self->heads;
    const int64_t at = head * heads * op->head_size;
    const int64_t keys = self->offset + head * HK_PAGE * self->row_bytes;
    return (hk_attention_job){
        .q = float_row(model, op->src, block->first) + at,
        .q_stride = model->buffers[op->src].stride,
        .out = float_row(model, op->out, block->first) + at,
        .out_stride = model->buffers[op->out].stride,
        .positions = step->positions + block->first,
        .rows = block->rows,
        .heads = heads,
        .head_size = op->head_size,
        .window = op->window,
        .scale = op->scale,
        .codec = pages->codec,
        .key_scale = of_head(self->key_scale, head, self->head_size),
        .base = pages->base,
        .page_bytes = pages->page_bytes,
        .k_offset = keys,
        .v_offset = keys + hk_page_values(self),
        .row_bytes = self->row_bytes,
        .pages = page_table(step, block->first),
    };
}

/* Threads take blocks and heads in turns; of a row by itself, which has a long way to go alone, they take spans,
 * and who is last joins them. */
static void run_attention(const hk_model *model, const hk_op *op, int part, int parts)
{
    const int64_t heads = model->pages.stores[op->store].heads;
    float *scratch = model->scratch + part * model->scratch_floats;
    int64_t turn = 0, shared = 0;
    for (int i = 0; i < model->block_count; i++) {
        const query_block *block = &model->blocks[i];
        const int64_t position = model->step->positions[block->first];
        int spans = parts > 1 && block->rows == 1 ? hk_attention_spans(position, op->window) : 1;
        if (shared + heads * spans > SPANS)
            spans = 1;
        for (int64_t item = 0; item < heads * spans; item++) {
            if (turn++ % parts != part)
                continue;
            const hk_attention_job job = attention_job(model, op, block, item / spans);
            if (spans == 1) {
                hk_attention(&job, scratch);
                continue;
            }
            const int64_t first = shared + item / spans * spans;
            float *gathered = model->gathered + first * model->gathered_floats;
            hk_attention_gather(&job, (int)(item % spans), gathered, scratch);
            if (atomic_fetch_add(&model->spans_done[first], 1) == spans - 1) {
                hk_attention_join(&job, gathered);
                atomic_store(&model->spans_done[first], 0);
            }
        }
        shared += spans > 1 ? heads * spans : 0;
    }
}

/* Any split into whole lanes gives the same result. Rows are worked on to the end of their stride, where
 * zeros stay zeros. */
static void run_add(const hk_model *model, const hk_op *op, int64_t rows, int part, int parts)
{
    int64_t first, last;
    hk_share(rows * model->buffers[op->out].stride / HK_LANES, part, parts, &first, &last);
    hk_kernels_get()->add(float_rows(model, op->src) + first * HK_LANES,
                          float_rows(model, op->src2) + first * HK_LANES, (last - first) * HK_LANES,
                          float_rows(model, op->out) + first * HK_LANES);
}

/* As run_add, by blocks; a quantised result is made a run of blocks at a time. */
static void run_gate(const hk_model *model, const hk_op *op, int64_t rows, int part, int parts)
{
    enum { RUN = 8 };
    const hk_kernels *kernels = hk_kernels_get();
    const buffer *out = &model->buffers[op->out];
    const float *gate = float_rows(model, op->src), *up = float_rows(model, op->src2);
    int64_t first, last;
    hk_share(rows * out->stride / HK_BLOCK, part, parts, &first, &last);
    if (out->kind != HK_BUFFER_QUANTISED) {
        kernels->gate(op->activation, gate + first * HK_BLOCK, up + first * HK_BLOCK,
                      (last - first) * HK_BLOCK, float_rows(model, op->out) + first * HK_BLOCK);
        return;
    }
    for (int64_t block = first; block < last; block += RUN) {
        const int64_t count = hk_min(RUN, last - block), at = block * HK_BLOCK;
        float gated[RUN * HK_BLOCK];
        kernels->gate(op->activation, gate + at, up + at, count * HK_BLOCK, gated);
        kernels->quantise(gated, count, out->q + at, out->scale + block);
    }
}

static void run_select(const hk_model *model, const hk_op *op, int part, int parts)
{
    const int64_t width = model->buffers[op->src].width;
    int64_t first, last;
    hk_share(model->step->selected, part, parts, &first, &last);
    for (int64_t row = first; row < last; row++)
        memcpy(float_row(model, op->out, row), float_row(model, op->src, model->step->selection[row]),
               (size_t)width * sizeof(float));
}

static void run_op(const hk_model *model, const hk_op *op, int part, int parts)
{
    const hk_step *step = model->step;
    const int64_t rows = op->scored ? step->scored : op->selected ? step->selected : step->rows;
    switch ((enum hk_op_kind)op->kind) {
    case HK_OP_EMBED: run_embed(model, op, rows, part, parts); break;
    case HK_OP_NORM: run_norm(model, op, rows, part, parts); break;
    case HK_OP_QUANTISE: run_quantise(model, op, rows, part, parts); break;
    case HK_OP_MATMUL: run_matmul(model, op, rows, part, parts); break;
    case HK_OP_ROPE_TABLE: run_rope_table(model, op, rows, part, parts); break;
    case HK_OP_ROPE: run_rope(model, op, rows, part, parts); break;
    case HK_OP_STORE: run_store(model, op, rows, part, parts); break;
    case HK_OP_ATTENTION: run_attention(model, op, part, parts); break;
    case HK_OP_GATE: run_gate(model, op, rows, part, parts); break;
    case HK_OP_ADD: run_add(model, op, rows, part, parts); break;
    case HK_OP_SELECT: run_select(model, op, part, parts); break;
    }
}

static void step_task(void *context, int part, int parts)
{
    const hk_model *model = context;
    for (int i = 0; i < model->op_count; i++) {
        if (model->ops[i].wait)
            hk_pool_barrier(model->pool);
        run_op(model, &model->ops[i], part, parts);
    }
}

/* Copy a share of the rows of what a segment puts out. */
static void put_rows(const hk_model *model, const hk_segment *segment, int part, int parts)
{
    const buffer *self = &model->buffers[segment->put];
    const int64_t blocks = hk_blocks(self->width), width = blocks * HK_BLOCK;
    int64_t first, last;
    hk_share(model->step->rows, part, parts, &first, &last);
    if (self->kind == HK_BUFFER_FLOAT) {
        memcpy((float *)segment->values + first * width, self->x + first * width,
               (size_t)((last - first) * width) * sizeof *self->x);
        return;
    }
    memcpy((int8_t *)segment->values + first * width, self->q + first * width, (size_t)((last - first) * width));
    for (int64_t block = first * blocks; block < last * blocks; block++)
        segment->scales[block] = self->scale[block].scale;
}

/* Finish a matmul whose product is there, as matmul_groups does: the bias, then the sum. */
static void take_product(const hk_model *model, const hk_op *op, const float *product, int part, int parts)
{
    const int64_t width = model->weights[op->weight].rows;
    const float *bias = op->vector < 0 ? NULL : model->vectors[op->vector];
    int64_t first, last;
    hk_share(model->step->rows, part, parts, &first, &last);
    for (int64_t row = first; row < last; row++) {
        const float *src = product + row * width;
        const float *residual = op->src2 < 0 ? NULL : float_row(model, op->src2, row);
        float *out = float_row(model, op->out, row);
        for (int64_t i = 0; i < width; i++) {
            float value = src[i];
            if (bias)
                value += bias[i];
            out[i] = residual ? value + residual[i] : value;
        }
    }
}

static void segment_task(void *context, int part, int parts)
{
    const hk_model *model = context;
    const hk_segment *segment = model->segment;
    for (int i = segment->first; i < segment->last; i++) {
        const hk_op *op = &model->ops[i];
        const int number = i - segment->first;
        if (op->wait)
            hk_pool_barrier(model->pool);
        if (number < segment->brought)
            take_product(model, op, segment->products[number], part, parts);
        else
            run_op(model, op, part, parts);
    }
    if (segment->put >= 0) {
        hk_pool_barrier(model->pool);
        put_rows(model, segment, part, parts);
    }
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* step_task with a look at the clock around each op. */
static void profile_task(void *context, int part, int parts)
{
    const hk_model *model = context;
    hk_op_time *times = model->times + (int64_t)part * model->op_count;
    int64_t before = now();
    for (int i = 0; i < model->op_count; i++) {
        if (model->ops[i].wait)
            hk_pool_barrier(model->pool);
        const int64_t begun = now();
        run_op(model, &model->ops[i], part, parts);
        const int64_t done = now();
        times[i] = (hk_op_time){begun - before, done - begun};
        before = done;
    }
}

/* Cut the step's rows into runs of one sequence, as even as can be: two for each thread and more, unless they are
 * so short that reading tiles is most of the work. The cut depends on the batch, results do not: every row folds
 * its own tiles in its own order. */
static void cut_query_blocks(hk_model *model, const hk_step *step)
{
    enum { SHORT = 8 };
    const int shares = 2 * hk_pool_threads(model->pool);
    query_block *next = model->blocks;
    for (int32_t first = 0, end; first < step->rows; first = end) {
        for (end = first + 1; end < step->rows && step->sequences[end] == step->sequences[first]; end++)
            ;
        const int rows = end - first, fewest = (rows + HK_QUERY_TILE - 1) / HK_QUERY_TILE;
        const int wanted = 1 + (shares - 1) / model->fewest_heads;
        const int parts = (int)hk_max(fewest, hk_min(wanted, rows / SHORT));
        for (int part = 0; part < parts; part++) {
            int64_t from, to;
            hk_share(rows, part, parts, &from, &to);
            *next++ = (query_block){first + (int32_t)from, (int32_t)(to - from)};
        }
    }
    model->block_count = (int)(next - model->blocks);
}

static void run_step(hk_model *model, const hk_step *step, hk_task task)
{
    model->step = step;
    cut_query_blocks(model, step);
    hk_pool_run(model->pool, task, model);
    model->step = NULL;
}

void hk_model_step(hk_model *model, const hk_step *step) { run_step(model, step, step_task); }

void hk_model_run(hk_model *model, const hk_step *step, const hk_segment *segment)
{
    model->segment = segment;
    run_step(model, step, segment_task);
    model->segment = NULL;
}

int64_t hk_model_profile(hk_model *model, const hk_step *step, hk_op_time *times)
{
    const int64_t begun = now();
    model->times = times;
    run_step(model, step, profile_task);
    model->times = NULL;
    return now() - begun;
}

/* ---- Rows by themselves -------------------------------------------------------------------------- */

void hk_model_copy_rows(hk_model *model, int32_t source, int32_t target, int32_t positions)
{
    hk_pages_copy(&model->pages, source, target, positions);
}

void hk_model_read_rows(const hk_model *model, int32_t store, const int32_t *pages, int64_t start, int64_t stop,
                        uint8_t *rows)
{
    hk_pages_read(&model->pages, store, pages, start, stop, rows);
}

void hk_model_write_rows(hk_model *model, int32_t store, const int32_t *pages, int64_t start, int64_t stop,
                         const uint8_t *rows)
{
    hk_pages_write(&model->pages, store, pages, start, stop, rows);
}

/* ---- One matmul by itself ------------------------------------------------------------------------ */

typedef struct matmul_job {
    const hk_weight *weight;
    const hk_activations *act;
    int64_t rows;
    float *out;
} matmul_job;

static void matmul_task(void *context, int part, int parts)
{
    const matmul_job *job = context;
    matmul_groups(job->weight, job->act, NULL, NULL, job->rows, job->out, job->weight->rows, part, parts);
}

int hk_matmul(hk_pool *pool, int layout, const void *packed, int64_t outputs, int64_t columns,
              const float *x, int64_t rows, float *out)
{
    buffer padded = {0}, quantised = {0};
    const bool ok = create_buffer(&padded, &(hk_buffer){HK_BUFFER_FLOAT, (int32_t)columns}, rows)
                    && create_buffer(&quantised, &(hk_buffer){HK_BUFFER_QUANTISED, (int32_t)columns}, rows);
    if (ok) {
        const int64_t blocks = hk_blocks(columns);
        for (int64_t row = 0; row < rows; row++)
            memcpy(padded.x + row * padded.stride, x + row * columns, (size_t)columns * sizeof *x);
        hk_kernels_get()->quantise(padded.x, rows * blocks, quantised.q, quantised.scale);
        const hk_weight weight = {layout, outputs, columns, packed};
        const hk_activations act = {blocks, quantised.q, quantised.scale, padded.x, padded.stride};
        hk_pool_run(pool, matmul_task, &(matmul_job){&weight, &act, rows, out});
    }
    free(padded.x);
    free(quantised.q);
    free(quantised.scale);
    return ok ? HK_OK : HK_NO_MEMORY;
}
