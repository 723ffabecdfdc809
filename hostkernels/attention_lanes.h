/* attention_lanes.h: stored keys and values as floats, and attention with them; a part of ops_lanes.h.
 *
 * Keys are (HK_STRIPS, head_size, HK_LANES), values (HK_PAGE, stride).
 */
#ifndef HK_ATTENTION_LANES_H
#define HK_ATTENTION_LANES_H

/* Queries that attend together, strips of keys and lanes of values that are summed at once: as many as registers
 * hold. */
#if LANES_WIDTH == 16
enum { OPS_QUERIES = 6, OPS_STRIPS = 4, OPS_COLUMNS = 4 };
#elif LANES_WIDTH == 8
enum { OPS_QUERIES = 3, OPS_STRIPS = 2, OPS_COLUMNS = 2 };
#else
enum { OPS_QUERIES = 3, OPS_STRIPS = 1, OPS_COLUMNS = 1 };
#endif

static void OPS_NAME(read_keys)(int codec, const uint8_t *strip, int head_size, float *dst)
{
    switch (codec) {
    case HK_KV_F32:
        memcpy(dst, strip, (size_t)head_size * HK_LANES * sizeof *dst);
        break;
    case HK_KV_F16:
        for (int d = 0; d < head_size; d++)
            lanes_store(dst + d * HK_LANES, lanes_of_halves(strip + 2 * d * HK_LANES));
        break;
    case HK_KV_Q8_0:
        for (int block = 0; block < head_size / HK_BLOCK; block++, strip += HK_LANES * 34) {
            const hk_lanes scale = lanes_of_halves(strip);
            for (int i = 0; i < HK_BLOCK; i++)
                lanes_store(dst + (block * HK_BLOCK + i) * HK_LANES,
                            lanes_mul(scale, lanes_of_bytes(strip + HK_LANES * (2 + i))));
        }
        break;
    default:
        for (int block = 0; block < head_size / HK_BLOCK; block++, strip += HK_LANES * 18) {
            const hk_lanes scale = lanes_of_halves(strip);
            float *x = dst + block * HK_BLOCK * HK_LANES;
            for (int i = 0; i < HK_HALF; i++) {
                const uint8_t *pairs = strip + HK_LANES * (2 + i);
                lanes_store(x + i * HK_LANES, lanes_mul(scale, lanes_of_levels(pairs, 0, hk_tq4_levels)));
                lanes_store(x + (i + HK_HALF) * HK_LANES, lanes_mul(scale, lanes_of_levels(pairs, 4, hk_tq4_levels)));
            }
        }
        break;
    }
}

static inline float OPS_NAME(half_at)(const uint8_t *src)
{
    uint16_t half;
    memcpy(&half, src, sizeof half);
#if defined(__F16C__)
    return _cvtsh_ss(half);
#else
    return hk_half_to_float(half);
#endif
}

static inline void OPS_NAME(read_value)(int codec, const uint8_t *row, int head_size, float *dst)
{
    switch (codec) {
    case HK_KV_F16: {
        int d = 0;
        for (; d + HK_LANES <= head_size; d += HK_LANES)
            lanes_store(dst + d, lanes_of_halves(row + 2 * d));
        if (d < head_size)
            hk_codec_read(codec, row + 2 * d, head_size - d, dst + d);
        break;
    }
    case HK_KV_Q8_0:
        for (int block = 0; block < head_size / HK_BLOCK; block++, row += 34, dst += HK_BLOCK) {
            const hk_lanes scale = lanes_splat(OPS_NAME(half_at)(row));
            lanes_store(dst, lanes_mul(scale, lanes_of_bytes(row + 2)));
            lanes_store(dst + HK_HALF, lanes_mul(scale, lanes_of_bytes(row + 2 + HK_HALF)));
        }
        break;
    case HK_KV_TQ4:
        for (int block = 0; block < head_size / HK_BLOCK; block++, row += 18, dst += HK_BLOCK) {
            const hk_lanes scale = lanes_splat(OPS_NAME(half_at)(row));
            lanes_store(dst, lanes_mul(scale, lanes_of_levels(row + 2, 0, hk_tq4_levels)));
            lanes_store(dst + HK_HALF, lanes_mul(scale, lanes_of_levels(row + 2, 4, hk_tq4_levels)));
        }
        break;
    default:
        memcpy(dst, row, (size_t)head_size * sizeof *dst);
        break;
    }
}

static void OPS_NAME(read_values)(int codec, const uint8_t *rows, int count, int head_size, float *dst,
                                  int64_t stride)
{
    const int64_t row_bytes = hk_codec_bytes(codec, head_size);
    for (int row = 0; row < count; row++)
        OPS_NAME(read_value)(codec, rows + row * row_bytes, head_size, dst + row * stride);
}

static void OPS_NAME(take_queries)(const hk_queries *queries, float scale)
{
    for (int i = 0; i < queries->count; i++)
        queries->scale[i] = scale;
}

static void OPS_NAME(read_tile)(int codec, const uint8_t *keys, const uint8_t *values, int from, int to,
                                const hk_tile_rows *tile)
{
    const int64_t row_bytes = hk_codec_bytes(codec, tile->head_size);
    /* Values come from memory while keys are read. */
    hk_prefetch(values + from * row_bytes, (int)((to - from) * row_bytes));
    for (int p = from / HK_LANES * HK_LANES; p < to; p += HK_LANES)
        OPS_NAME(read_keys)(codec, keys + p * row_bytes, tile->head_size, (float *)tile->keys + p * tile->head_size);
    OPS_NAME(read_values)(codec, values + from * row_bytes, to - from, tile->head_size,
                          (float *)tile->values + from * tile->stride, tile->stride);
}

/* How much of a query's running values stays, and how much of the tile's is taken. */
typedef struct shares {
    float keep;
    float take;
} shares;

/* Let a running softmax take in what has `most` for its greatest score and `sum` for its sum of weights. */
static inline shares OPS_NAME(take_in)(float *highest, float *total, float most, float sum)
{
    const float lower = hk_exp(-fabsf(most - *highest));
    const shares share = most > *highest ? (shares){lower, 1.0f} : (shares){1.0f, lower};
    *total = *total * share.keep + sum * share.take;
    *highest = most > *highest ? most : *highest;
    return share;
}

/* out = out * keep + (weighted sum of values) * take, for `count` lanes from column d on, query by query. */
static inline __attribute__((always_inline)) void
OPS_NAME(fold)(int count, const hk_tile_rows *tile, const float weight[][HK_PAGE], hk_seen seen, int64_t d,
               int columns, const shares *share, float *out)
{
    hk_lanes weighted[OPS_QUERIES][OPS_COLUMNS];
    for (int i = 0; i < count; i++)
        for (int c = 0; c < columns; c++)
            weighted[i][c] = lanes_zero();
    for (int p = seen.from; p < seen.to; p++)
        for (int c = 0; c < columns; c++) {
            const hk_lanes values = lanes_load((const float *)tile->values + p * tile->stride + d + c * HK_LANES);
            for (int i = 0; i < count; i++)
                weighted[i][c] = lanes_mul_add(values, lanes_splat(weight[i][p]), weighted[i][c]);
        }
    for (int i = 0; i < count; i++)
        for (int c = 0; c < columns; c++) {
            float *at = out + i * tile->stride + d + c * HK_LANES;
            const hk_lanes kept = lanes_mul(lanes_load(at), lanes_splat(share[i].keep));
            lanes_store(at, lanes_mul_add(weighted[i][c], lanes_splat(share[i].take), kept));
        }
}

/* Scores of the strips from `strip` on, query by query. */
static inline __attribute__((always_inline)) void
OPS_NAME(scores)(int count, const float *q, const hk_tile_rows *tile, int strip, float score[][HK_PAGE])
{
    hk_lanes dot[OPS_QUERIES][OPS_STRIPS];
    for (int i = 0; i < count; i++)
        for (int s = 0; s < OPS_STRIPS; s++)
            dot[i][s] = lanes_zero();
    const float *at = (const float *)tile->keys + strip * tile->head_size * HK_LANES;
    for (int d = 0; d < tile->head_size; d++)
        for (int s = 0; s < OPS_STRIPS; s++) {
            const hk_lanes keys = lanes_load(at + (s * tile->head_size + d) * HK_LANES);
            for (int i = 0; i < count; i++)
                dot[i][s] = lanes_mul_add(keys, lanes_splat(q[i * tile->stride + d]), dot[i][s]);
        }
    for (int i = 0; i < count; i++)
        for (int s = 0; s < OPS_STRIPS; s++)
            lanes_store(score[i] + (strip + s) * HK_LANES, dot[i][s]);
}

/* `count` is a constant at each use; the queries see the same positions. They share the loads of keys and values,
 * nothing else. */
static inline __attribute__((always_inline)) void
OPS_NAME(attend_together)(int count, const hk_queries *queries, int first, const hk_tile_rows *tile)
{
    const hk_seen seen = queries->seen[first];
    float weight[OPS_QUERIES][HK_PAGE];
    for (int s = 0; s < HK_STRIPS; s += OPS_STRIPS)
        OPS_NAME(scores)(count, (const float *)queries->q + first * tile->stride, tile, s, weight);

    shares share[OPS_QUERIES];
    for (int i = 0; i < count; i++) {
        for (int p = 0; p < seen.from; p++)
            weight[i][p] = -INFINITY;
        for (int p = seen.to; p < HK_PAGE; p++)
            weight[i][p] = -INFINITY;
        const hk_lanes scale = lanes_splat(queries->scale[first + i]);
        hk_lanes score[HK_STRIPS], top = lanes_splat(-INFINITY);
        for (int s = 0; s < HK_STRIPS; s++) {
            score[s] = lanes_mul(lanes_load(weight[i] + s * HK_LANES), scale);
            top = lanes_max(score[s], top);
        }
        const float most = lanes_most(top);
        hk_lanes sum = lanes_zero();
        for (int s = 0; s < HK_STRIPS; s++) {
            const hk_lanes weights = lanes_exp(lanes_add(score[s], lanes_splat(-most)));
            lanes_store(weight[i] + s * HK_LANES, weights);
            sum = lanes_add(sum, weights);
        }
        share[i] = OPS_NAME(take_in)(&queries->most[first + i], &queries->sum[first + i], most, lanes_sum(sum));
    }

    float *out = queries->out + first * tile->stride;
    int64_t d = 0;
    for (; d + OPS_COLUMNS * HK_LANES <= tile->stride; d += OPS_COLUMNS * HK_LANES)
        OPS_NAME(fold)(count, tile, weight, seen, d, OPS_COLUMNS, share, out);
    for (; d < tile->stride; d += HK_LANES)
        OPS_NAME(fold)(count, tile, weight, seen, d, 1, share, out);
}

static void OPS_NAME(attend)(const hk_queries *queries, const hk_tile_rows *tile)
{
    int count;
    for (int i = 0; i < queries->count; i += count) {
        const hk_seen seen = queries->seen[i];
        for (count = 1; count < OPS_QUERIES && i + count < queries->count; count++)
            if (queries->seen[i + count].from != seen.from || queries->seen[i + count].to != seen.to)
                break;
        if (count == OPS_QUERIES) {
            OPS_NAME(attend_together)(OPS_QUERIES, queries, i, tile);
        } else if (count >= OPS_QUERIES / 2) {
            count = OPS_QUERIES / 2;
            OPS_NAME(attend_together)(OPS_QUERIES / 2, queries, i, tile);
        } else {
            count = 1;
            OPS_NAME(attend_together)(1, queries, i, tile);
        }
    }
}

static void OPS_NAME(join)(const hk_queries *queries, const hk_queries *others)
{
    for (int i = 0; i < queries->count; i++) {
        if (others->sum[i] == 0.0f)
            continue;
        const shares share = OPS_NAME(take_in)(&queries->most[i], &queries->sum[i], others->most[i], others->sum[i]);
        float *out = queries->out + i * queries->stride;
        const float *other = others->out + i * queries->stride;
        for (int64_t d = 0; d < queries->stride; d += HK_LANES) {
            const hk_lanes kept = lanes_mul(lanes_load(out + d), lanes_splat(share.keep));
            lanes_store(out + d, lanes_mul_add(lanes_load(other + d), lanes_splat(share.take), kept));
        }
    }
}

static const hk_attention_form OPS_NAME(attention) = {OPS_NAME(take_queries), OPS_NAME(read_tile), OPS_NAME(attend),
                                                      OPS_NAME(join)};

#endif
