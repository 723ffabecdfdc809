/* sampler.c: from a row of logits to one token.
 *
 * Every pass is linear and in order of ids; nothing is sorted. A filter keeps what lies above a
 * threshold, and the threshold is found digit by digit, since floats are ordered like integers made of
 * their bits. Sums have one fixed order. Loops over BLOCK values are plain, so that compilers
 * vectorise them.
 */
#include "internal.h"

enum {
    BLOCK = 64,    /* values handled, or passed over, together */
    CHUNK = 1024,  /* weights whose sum is passed over when the draw lies beyond it */
    BINS = 2048,   /* of one digit */
    COPIES = 2,    /* of the bins: neighbours that fall into one bin do not wait for each other */
    DIGITS = 3
};

/* The digits of a key, most significant first: 11, 11 and 10 bits. */
static const int SHIFT[DIGITS] = {21, 10, 0};
static const uint32_t MASK[DIGITS] = {0x7ff, 0x7ff, 0x3ff};

/* ---- Passes over all values -------------------------------------------------------------------- */

static float larger(float x, float best) { return x > best ? x : best; }

/* The largest value; -INFINITY when all are NaN. */
static float largest(const float *x, int64_t count)
{
    float lanes[HK_LANES], best = -INFINITY;
    int64_t i = 0;
    for (int lane = 0; lane < HK_LANES; lane++)
        lanes[lane] = -INFINITY;
    for (; i + HK_LANES <= count; i += HK_LANES)
        for (int lane = 0; lane < HK_LANES; lane++)
            lanes[lane] = larger(x[i + lane], lanes[lane]);
    for (; i < count; i++)
        best = larger(x[i], best);
    for (int lane = 0; lane < HK_LANES; lane++)
        best = larger(lanes[lane], best);
    return best;
}

/* Whether any of BLOCK values is `limit` or above. */
static bool any_from(const float *x, float limit)
{
    int32_t lanes[HK_LANES] = {0}, any = 0;
    for (int i = 0; i < BLOCK; i += HK_LANES)
        for (int lane = 0; lane < HK_LANES; lane++)
            lanes[lane] |= x[i + lane] >= limit;
    for (int lane = 0; lane < HK_LANES; lane++)
        any |= lanes[lane];
    return any;
}

/* Item i is added to partial sum i % 8. */
static double sum_of(const float *x, int64_t count)
{
    double lanes[8] = {0}, total = 0.0;
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (int lane = 0; lane < 8; lane++)
            lanes[lane] += x[i + lane];
    for (int lane = 0; i < count; i++, lane++)
        lanes[lane] += x[i];
    for (int lane = 0; lane < 8; lane++)
        total += lanes[lane];
    return total;
}

/* e^x for x of at most 0, as hk_exp has it; 0 under -87.3 and for NaN. Without a branch. */
static inline float weight_of(float x)
{
    const uint32_t limit = 0x42ae999au; /* 87.3f */
    const uint32_t normal = (uint32_t)((int32_t)((hk_bits_of(x) & 0x7fffffffu) - limit - 1) >> 31);
    const float clamped = hk_float_of(hk_bits_of(x) & normal);
    const int32_t n = (int32_t)(clamped * 1.44269504f - 0.5f);
    const float whole = (float)n;
    const float r = (clamped - whole * 0.693359375f) + whole * 2.12194440e-4f;
    const float p = hk_exp_series(r) * hk_float_of((uint32_t)(n + 127) << 23);
    return hk_float_of(hk_bits_of(p) & normal);
}

/* e^((logit - best) * inverse), best being the largest. */
static void weigh(const float *logits, int64_t count, float best, float inverse, float *restrict weights)
{
    for (int64_t i = 0; i < count; i++)
        weights[i] = weight_of((logits[i] - best) * inverse);
}

int64_t hk_argmax(const float *logits, int64_t count)
{
    const float best = largest(logits, count);
    int64_t i = 0;
    while (i + BLOCK <= count && !any_from(logits + i, best))
        i += BLOCK;
    for (; i < count; i++)
        if (logits[i] == best)
            return i;
    return 0; /* all are NaN */
}

/* ---- Filters ----------------------------------------------------------------------------------- */

/* What is above `value`, and what equals it up to index `last`. */
typedef struct threshold {
    float value;
    int64_t last;
} threshold;

/* Weights that are not kept become 0. */
static void apply(threshold cut, float *weights, int64_t count)
{
    const int64_t edge = hk_min(cut.last + 1, count);
    for (int64_t i = 0; i < edge; i++)
        weights[i] = weights[i] >= cut.value ? weights[i] : 0.0f;
    for (int64_t i = edge; i < count; i++)
        weights[i] = weights[i] > cut.value ? weights[i] : 0.0f;
}

/* An integer that is ordered as the floats are, and back. */
static inline uint32_t key_of(float x)
{
    const uint32_t bits = hk_bits_of(x);
    return bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
}

static inline float value_of(uint32_t key)
{
    return hk_float_of(key ^ (key & 0x80000000u ? 0x80000000u : 0xffffffffu));
}

/* Add 1 for each value, or the value itself, to the bin of its digit. */
static void fill_bins(const float *x, int64_t count, int digit, bool by_mass, double bins[COPIES][BINS])
{
    memset(bins, 0, COPIES * sizeof *bins);
    for (int64_t i = 0; i < count; i++)
        bins[i % COPIES][key_of(x[i]) >> SHIFT[digit] & MASK[digit]] += by_mass ? (double)x[i] : 1.0;
    for (int bin = 0; bin < BINS; bin++)
        bins[0][bin] += bins[1][bin];
}

static double sum_of_bins(const double *bins)
{
    double total = 0.0;
    for (int bin = 0; bin < BINS; bin++)
        total += bins[bin];
    return total;
}

/* Move the values whose key begins with these digits to `members`, which may be `x`; return how many. */
static int64_t gather(const float *x, int64_t count, uint32_t prefix, int digit, float *members)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        const float value = x[i];
        members[kept] = value;
        kept += (key_of(value) ^ prefix) >> SHIFT[digit] == 0;
    }
    return kept;
}

/* The fewest of the largest values whose amounts reach a goal; equal values are taken in order. by_mass:
 * values are weights, an amount is the weight itself and the goal a share of the sum; else an amount is 1
 * and the goal a number of values. members: room for `count` values. */
static threshold find(const float *x, int64_t count, bool by_mass, double goal, float *members)
{
    double bins[COPIES][BINS], reached = 0.0;
    const float *pool = x;
    int64_t size = count;
    uint32_t prefix = 0;
    for (int digit = 0; digit < DIGITS; digit++) {
        fill_bins(pool, size, digit, by_mass, bins);
        if (by_mass && digit == 0)
            goal *= sum_of_bins(bins[0]);
        /* Should a digit's sums round to less than their bin of the last, its lowest bin is cut. */
        int cut = 0;
        double above = reached;
        for (int bin = (int)MASK[digit]; bin >= 0; bin--) {
            if (bins[0][bin] == 0.0)
                continue;
            cut = bin;
            above = reached;
            reached += bins[0][bin];
            if (reached >= goal)
                break;
        }
        reached = above;
        prefix |= (uint32_t)cut << SHIFT[digit];
        size = gather(pool, size, prefix, digit, members);
        pool = members;
    }
    const float value = value_of(prefix);
    const double wanted = ceil((goal - reached) / (by_mass ? (double)value : 1.0));
    int64_t last = count - 1;
    if (wanted < (double)size) {
        const int64_t equal = hk_max(1, (int64_t)wanted);
        last = -1;
        for (int64_t met = 0; met < equal;)
            met += x[++last] == value;
    }
    return (threshold){value, last};
}

/* ---- The draw ---------------------------------------------------------------------------------- */

/* The index whose share of the sum holds `draw`. Some weight must be above 0. */
static int64_t draw_index(const float *weights, int64_t count, double draw)
{
    double total = 0.0, reached = 0.0;
    for (int64_t i = 0; i < count; i += CHUNK)
        total += sum_of(weights + i, hk_min(CHUNK, count - i));
    const double target = draw * total;
    int64_t start = 0;
    for (;; start += CHUNK) { /* ends: draw is below 1, so target is below the total */
        const double next = reached + sum_of(weights + start, hk_min(CHUNK, count - start));
        if (target < next)
            break;
        reached = next;
    }
    int64_t last = start;
    for (int64_t i = start; i < hk_min(start + CHUNK, count); i++) {
        reached += weights[i];
        if (weights[i] > 0.0f)
            last = i;
        if (target < reached)
            break;
    }
    return last; /* even where the chunk's weights, one by one, round to less than its sum */
}

int64_t hk_sample(const float *logits, int64_t count, float temperature, int64_t top_k, float top_p,
                  float min_p, double draw, void *scratch)
{
    const int64_t blocks = (count + BLOCK - 1) / BLOCK;
    float *weights = scratch, *members = weights + blocks * BLOCK, *peaks = members + blocks * BLOCK;
    int32_t *kept = (int32_t *)(peaks + blocks);
    for (int64_t b = 0; b < blocks; b++)
        peaks[b] = largest(logits + b * BLOCK, hk_min(BLOCK, count - b * BLOCK));
    const float best = largest(peaks, blocks), inverse = 1.0f / temperature;
    if (!isfinite(best) || !isfinite(inverse))
        return hk_argmax(logits, count);

    /* The k largest peaks are k values at least as large as the last of them, so what has a smaller peak
     * holds none of the k largest values. */
    const bool narrow = top_k > 0 && top_k < blocks;
    const float floor = narrow ? find(peaks, blocks, false, (double)top_k, members).value : -INFINITY;
    int64_t size = 0;
    for (int64_t b = 0; b < blocks; b++) {
        if (peaks[b] < floor)
            continue;
        const int64_t filled = hk_min(BLOCK, count - b * BLOCK);
        weigh(logits + b * BLOCK, filled, best, inverse, weights + size);
        for (int64_t i = filled; i < BLOCK; i++)
            weights[size + i] = 0.0f;
        kept[size / BLOCK] = (int32_t)b;
        size += BLOCK;
    }

    if (top_k > 0 && top_k < count)
        apply(find(weights, size, false, (double)top_k, members), weights, size);
    if (top_p < 1.0f)
        apply(find(weights, size, true, top_p, members), weights, size);
    if (min_p > 0.0f) /* of the best one's weight, which is 1 */
        apply((threshold){min_p, size - 1}, weights, size);
    const int64_t index = draw_index(weights, size, draw);
    return (int64_t)kept[index / BLOCK] * BLOCK + index % BLOCK;
}

/* ---- Penalties --------------------------------------------------------------------------------- */

void hk_penalise(float *logits, const int32_t *tokens, int64_t prompt, int64_t count, float repeat,
                 float presence, float frequency, int32_t *seen)
{
    for (int64_t i = 0; i < count; i++)
        seen[tokens[i]] += i < prompt ? 0 : 1;
    for (int64_t i = 0; i < count; i++) {
        const int32_t token = tokens[i], generated = seen[token];
        if (generated < 0)
            continue;
        float logit = logits[token];
        logit = logit > 0.0f ? logit / repeat : logit * repeat;
        if (generated > 0)
            logit -= presence + frequency * (float)generated;
        logits[token] = logit;
        seen[token] = -1;
    }
    for (int64_t i = 0; i < count; i++)
        seen[tokens[i]] = 0;
}

/* ---- Probabilities ----------------------------------------------------------------------------- */

double hk_log_sum_exp(const float *logits, int64_t count)
{
    const float best = largest(logits, count);
    if (!isfinite(best))
        return best;
    float weights[CHUNK];
    double total = 0.0;
    for (int64_t i = 0; i < count; i += CHUNK) {
        const int64_t size = hk_min(CHUNK, count - i);
        weigh(logits + i, size, best, 1.0f, weights);
        total += sum_of(weights, size);
    }
    return (double)best + log(total);
}

int64_t hk_top(const float *logits, int64_t count, int64_t wanted, int64_t *ids)
{
    int64_t found = 0;
    float limit = -INFINITY;
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t end = hk_min(start + BLOCK, count);
        if (end == start + BLOCK && !any_from(logits + start, limit))
            continue;
        for (int64_t id = start; id < end; id++) {
            if (isnan(logits[id]) || (found == wanted && !(logits[id] > limit)))
                continue;
            int64_t at = found < wanted ? found++ : wanted - 1;
            for (; at > 0 && logits[ids[at - 1]] < logits[id]; at--)
                ids[at] = ids[at - 1];
            ids[at] = id;
            if (found == wanted)
                limit = logits[ids[found - 1]];
        }
    }
    return found;
}

/* ---- Random numbers ----------------------------------------------------------------------------- */

void hk_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4], k[2] = {key[0], key[1]};
    memcpy(c, counter, sizeof c);
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * c[0], b = (uint64_t)0xcd9e8d57u * c[2];
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
                                  (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
        memcpy(c, next, sizeof c);
        k[0] += 0x9e3779b9u;
        k[1] += 0xbb67ae85u;
    }
    memcpy(out, c, sizeof c);
}

double hk_uniform(uint64_t seed, uint64_t position)
{
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    hk_philox(counter, key, out);
    const uint64_t bits = ((uint64_t)out[0] << 32 | out[1]) >> 11;
    return (double)bits * 0x1p-53;
}
