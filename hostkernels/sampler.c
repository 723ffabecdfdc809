/* sampler.c: from a row of logits to one token.
 *
 * Every pass is linear and in order of ids; only the best few, the head, are sorted. Of the rest, the tail,
 * a filter keeps what lies above a threshold, and the threshold is found digit by digit, since floats are
 * ordered like integers made of their bits. Sums have one fixed order. Loops over BLOCK values are plain,
 * so that compilers vectorise them.
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
    const int64_t whole = count / 8 * 8;
    for (int64_t i = 0; i < whole; i += 8)
        for (int lane = 0; lane < 8; lane++)
            lanes[lane] += x[i + lane];
    for (int lane = 0; lane < count % 8; lane++)
        lanes[lane] += x[whole + lane];
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

/* Put those of the ids from `start` up to `end` that are among the `wanted` best into ids, the best first,
 * where `found` best of the ids before stand; return how many stand there now. Without NaN. */
static int64_t put_best(const float *x, int64_t start, int64_t end, int64_t wanted, int64_t *ids, int64_t found)
{
    for (int64_t id = start; id < end; id++) {
        if (isnan(x[id]) || (found == wanted && !(x[id] > x[ids[found - 1]])))
            continue;
        int64_t at = found < wanted ? found++ : wanted - 1;
        for (; at > 0 && x[ids[at - 1]] < x[id]; at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
    }
    return found;
}

/* The most likely ids, the best first, the lower one on a tie. */
typedef struct head {
    int64_t count;
    int64_t id[HK_HEAD];
    float weight[HK_HEAD]; /* each above 0 */
} head;

/* peaks: the best value of each block. The HK_HEAD best peaks are that many values at least as large as the
 * last of them, so the head lies in their blocks. */
static head find_head(const float *logits, int64_t count, const float *peaks, float best, float inverse)
{
    head found = {0};
    int64_t blocks[HK_HEAD];
    const int64_t size = put_best(peaks, 0, (count + BLOCK - 1) / BLOCK, HK_HEAD, blocks, 0);
    for (int64_t i = 1; i < size; i++) { /* in ascending order */
        const int64_t block = blocks[i];
        int64_t at = i;
        for (; at > 0 && blocks[at - 1] > block; at--)
            blocks[at] = blocks[at - 1];
        blocks[at] = block;
    }
    int64_t filled = 0;
    for (int64_t i = 0; i < size; i++) {
        const int64_t start = blocks[i] * BLOCK;
        filled = put_best(logits, start, hk_min(start + BLOCK, count), HK_HEAD, found.id, filled);
    }
    for (; found.count < filled; found.count++) {
        found.weight[found.count] = weight_of((logits[found.id[found.count]] - best) * inverse);
        if (found.weight[found.count] == 0.0f)
            break;
    }
    return found;
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

/* The sum of all weights. */
static double mass_of(const float *weights, int64_t count)
{
    double total = 0.0;
    for (int64_t i = 0; i < count; i += CHUNK)
        total += sum_of(weights + i, hk_min(CHUNK, count - i));
    return total;
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
 * values are weights and an amount is the weight itself; else an amount is 1. members: room for `count`
 * values. */
static threshold find(const float *x, int64_t count, bool by_mass, double goal, float *members)
{
    double bins[COPIES][BINS], reached = 0.0;
    const float *pool = x;
    int64_t size = count;
    uint32_t prefix = 0;
    for (int digit = 0; digit < DIGITS; digit++) {
        fill_bins(pool, size, digit, by_mass, bins);
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

/* The index whose share of the sum holds `target`, the last one where rounding puts that past the sum. Some
 * weight must be above 0. */
static int64_t index_at(const float *weights, int64_t count, double target)
{
    double reached = 0.0;
    int64_t start = 0;
    for (; start + CHUNK < count; start += CHUNK) {
        const double next = reached + sum_of(weights + start, CHUNK);
        if (target < next)
            break;
        reached = next;
    }
    const int64_t end = hk_min(start + CHUNK, count);
    for (int64_t i = start; i < end; i++) {
        reached += weights[i];
        if (weights[i] > 0.0f && target < reached)
            return i;
    }
    int64_t last = end - 1;
    while (weights[last] == 0.0f)
        last--;
    return last;
}

/* Ids beside the head: those of whole blocks, with 0 for the head's and for what a filter has dropped. */
typedef struct tail {
    float *weights;
    int64_t size;
    int32_t *blocks; /* where they come from, in ascending order */
    double mass;
} tail;

/* What has a smaller peak than `floor` stays out. */
static void weigh_tail(tail *rest, const float *logits, int64_t count, const float *peaks, float floor,
                       const head *front, float inverse)
{
    rest->size = 0;
    for (int64_t b = 0; b * BLOCK < count; b++) {
        if (peaks[b] < floor)
            continue;
        float *weights = rest->weights + rest->size;
        const int64_t filled = hk_min(BLOCK, count - b * BLOCK);
        weigh(logits + b * BLOCK, filled, logits[front->id[0]], inverse, weights);
        for (int64_t i = filled; i < BLOCK; i++)
            weights[i] = 0.0f;
        rest->blocks[rest->size / BLOCK] = (int32_t)b;
        rest->size += BLOCK;
    }
    for (int64_t i = 0; i < front->count; i++) {
        const int64_t block = front->id[i] / BLOCK;
        int64_t low = 0, high = rest->size / BLOCK - 1;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (rest->blocks[middle] < block)
                low = middle + 1;
            else
                high = middle;
        }
        rest->weights[low * BLOCK + front->id[i] % BLOCK] = 0.0f;
    }
    rest->mass = mass_of(rest->weights, rest->size);
}

static void limit_tail(tail *rest, threshold cut)
{
    apply(cut, rest->weights, rest->size);
    rest->mass = mass_of(rest->weights, rest->size);
}

/* Every filter keeps ids from the best one on; one that ends within the head drops the whole tail. */
int64_t hk_sample(const float *logits, int64_t count, float temperature, int64_t top_k, float top_p,
                  float min_p, double draw, void *scratch)
{
    const int64_t blocks = (count + BLOCK - 1) / BLOCK;
    float *weights = scratch, *members = weights + blocks * BLOCK, *peaks = members + blocks * BLOCK;
    for (int64_t b = 0; b < blocks; b++)
        peaks[b] = largest(logits + b * BLOCK, hk_min(BLOCK, count - b * BLOCK));
    const float best = largest(peaks, blocks), inverse = 1.0f / temperature;
    if (!isfinite(best) || !isfinite(inverse))
        return hk_argmax(logits, count);

    head front = find_head(logits, count, peaks, best, inverse);
    tail rest = {weights, 0, (int32_t *)(peaks + blocks), 0.0};
    const bool more = front.count == HK_HEAD && (top_k == 0 || top_k > HK_HEAD);
    if (top_k > 0)
        front.count = hk_min(front.count, top_k);
    if (more && (top_p < 1.0f || front.weight[HK_HEAD - 1] >= min_p)) {
        const bool narrow = top_k > 0 && top_k < blocks;
        const float floor = narrow ? find(peaks, blocks, false, (double)top_k, members).value : -INFINITY;
        weigh_tail(&rest, logits, count, peaks, floor, &front, inverse);
        if (top_k > 0 && top_k < count)
            limit_tail(&rest, find(weights, rest.size, false, (double)(top_k - HK_HEAD), members));
    }
    if (top_p < 1.0f) {
        const double goal = top_p * (mass_of(front.weight, front.count) + rest.mass);
        double reached = front.weight[0];
        int64_t kept = 1;
        while (kept < front.count && reached < goal)
            reached += front.weight[kept++];
        if (reached < goal && rest.mass > 0.0)
            limit_tail(&rest, find(weights, rest.size, true, goal - reached, members));
        else
            rest.mass = 0.0;
        front.count = kept;
    }
    int64_t likely = 1; /* min_p is of the best one's weight, which is 1 */
    while (likely < front.count && front.weight[likely] >= min_p)
        likely++;
    if (likely < front.count)
        rest.mass = 0.0;
    else if (min_p > 0.0f && rest.mass > 0.0)
        limit_tail(&rest, (threshold){min_p, rest.size - 1});
    front.count = likely;

    double total = rest.mass;
    for (int64_t i = 0; i < front.count; i++)
        total += front.weight[i];
    const double target = draw * total;
    double reached = 0.0;
    for (int64_t i = 0; i < front.count; i++) {
        reached += front.weight[i];
        if (target < reached)
            return front.id[i];
    }
    if (rest.mass == 0.0)
        return front.id[front.count - 1];
    const int64_t index = index_at(weights, rest.size, target - reached);
    return (int64_t)rest.blocks[index / BLOCK] * BLOCK + index % BLOCK;
}

/* ---- What changes logits before a draw ---------------------------------------------------------- */

void hk_adjust(float *logits, const hk_adjustment *adjustments, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const hk_adjustment by = adjustments[i];
        const float logit = logits[by.id] + by.plus;
        logits[by.id] = (logit > 0.0f ? logit / by.repeat : logit * by.repeat) - by.minus;
    }
}

int64_t hk_select(const float *logits, int64_t count, const uint32_t *allowed, int32_t *ids, float *values)
{
    int64_t found = 0;
    for (int64_t start = 0; start < count; start += 32) {
        const int64_t left = count - start;
        uint32_t word = allowed[start / 32];
        if (left < 32)
            word &= (1u << left) - 1;
        if (word == UINT32_MAX) { /* most are, where most ids are allowed */
            for (int i = 0; i < 32; i++)
                ids[found + i] = (int32_t)start + i;
            memcpy(values + found, logits + start, 32 * sizeof *values);
            found += 32;
            continue;
        }
        for (; word; word &= word - 1) {
            ids[found] = (int32_t)start + __builtin_ctz(word);
            values[found++] = logits[start + __builtin_ctz(word)];
        }
    }
    return found;
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
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t end = hk_min(start + BLOCK, count);
        if (found < wanted || end < start + BLOCK || any_from(logits + start, logits[ids[wanted - 1]]))
            found = put_best(logits, start, end, wanted, ids, found);
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
