/* sampler.c: from a row of logits to one token.
 *
 * Nothing sorts the whole vocabulary: a histogram of logits below the best one finds the few that can
 * be chosen, and only those are sorted.
 */
#include "internal.h"

#include <stdlib.h>

/* Tokens this far under the best one (after temperature) are less likely than a float can add to 1. */
enum { BINS = 1024 };
static const float DEPTH = 64.0f;

typedef struct candidate {
    double weight; /* exp of the scaled logit under the best */
    int64_t id;
} candidate;

int64_t hk_argmax(const float *logits, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best] || (isnan(logits[best]) && !isnan(logits[i])))
            best = i;
    return best;
}

/* Most likely first; ties by id. */
static int by_weight(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight < y->weight ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

static int bin_of(float below) { return (int)(below * ((float)BINS / DEPTH)); }

/* The first bin after which at least `count` tokens, or a share `mass` of the total, have been met. */
static int cut_bin(const float *logits, int64_t size, float best, float inverse, int64_t count, double mass)
{
    int64_t tokens[BINS] = {0};
    double weights[BINS] = {0}, total = 0.0;
    for (int64_t i = 0; i < size; i++) {
        const float below = (best - logits[i]) * inverse;
        if (!(below < DEPTH))
            continue;
        const double weight = hk_exp(-below);
        tokens[bin_of(below)]++;
        weights[bin_of(below)] += weight;
        total += weight;
    }
    int64_t met = 0;
    double reached = 0.0;
    for (int bin = 0; bin < BINS; bin++) {
        met += tokens[bin];
        reached += weights[bin];
        if (count > 0 ? met >= count : reached >= mass * total)
            return bin;
    }
    return BINS - 1;
}

static double total_weight(const candidate *list, int64_t count)
{
    double total = 0.0;
    for (int64_t i = 0; i < count; i++)
        total += list[i].weight;
    return total;
}

int64_t hk_sample(const float *logits, int64_t count, float temperature, int64_t top_k, float top_p,
                  float min_p, double draw, void *scratch)
{
    const int64_t winner = hk_argmax(logits, count);
    const float best = logits[winner], inverse = 1.0f / temperature;
    if (!isfinite(best) || !isfinite(inverse))
        return winner;

    const bool ranked = top_k > 0 || top_p < 1.0f;
    const int last_bin = ranked ? cut_bin(logits, count, best, inverse, top_k, top_p) : BINS - 1;
    candidate *list = scratch;
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        const float below = (best - logits[i]) * inverse;
        if (below < DEPTH && bin_of(below) <= last_bin)
            list[kept++] = (candidate){hk_exp(-below), i};
    }
    if (ranked)
        qsort(list, (size_t)kept, sizeof *list, by_weight);
    if (top_k > 0)
        kept = hk_min(kept, top_k);
    if (top_p < 1.0f) {
        /* Without top_k the list is the head of the whole vocabulary, whose total the cut was made of. */
        double total = 0.0;
        if (top_k > 0) {
            total = total_weight(list, kept);
        } else {
            for (int64_t i = 0; i < count; i++) {
                const float below = (best - logits[i]) * inverse;
                total += below < DEPTH ? hk_exp(-below) : 0.0f;
            }
        }
        double reached = 0.0;
        for (int64_t i = 0; i < kept; i++) {
            reached += list[i].weight;
            if (reached >= top_p * total)
                kept = i + 1;
        }
    }
    if (min_p > 0.0f) {
        int64_t likely = 0;
        for (int64_t i = 0; i < kept; i++)
            if (list[i].weight >= min_p)
                list[likely++] = list[i];
        kept = likely;
    }

    const double target = draw * total_weight(list, kept);
    double reached = 0.0;
    for (int64_t i = 0; i < kept; i++) {
        reached += list[i].weight;
        if (target < reached)
            return list[i].id;
    }
    return kept > 0 ? list[kept - 1].id : winner;
}

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
