#version 460
#extension GL_GOOGLE_include_directive : require
#include "best.glsl"

// Picks a row's token by what candidates.comp left. Groups: (1, rows).
//
// The chain is temperature, top_k, top_p, min_p. Each filter keeps ids from the best one on, so what they keep together
// is what the strictest keeps. Along [0, 1) lie first those of the 64 best ids that are kept, best first, then all
// others in ascending order, each as wide as it is likely. What the tail holds of the kept is known within bounds; where
// bounds leave a doubt, and where the number falls in the tail, the row is flagged.

layout(local_size_x = 256) in;

#include "group_max.glsl"
#include "group_sum.glsl"

const uint TAIL = 1;           // bit of Picked.flags: the whole row must be looked at; id is -1
const float SUM_SLACK = 8e-6;  // relative error of a sum over all ids at most, its weights' included
const float SLACK = 5e-7;      // of the candidates' sums, and of a product

struct Candidate {
    float logit;               // after what changes it
    uint id;                   // 0xffffffff where there are fewer
};

struct Picked {
    int id;
    uint flags;
    float logit;               // as the model has it
    float lse;                 // log-sum-exp of the logits as the model has them, if asked for
    Candidate candidate[CANDIDATES];
};

BUFFER writeonly buffer MutablePicked { Picked row[]; };

layout(push_constant) uniform Push {
    Units logits;
    Draws draws;
    Changes changes;
    Words peaks;
    Masses masses;
    MutablePicked picked;
    MutableWords sampled;      // each row's id for the next step; of a flagged row, the best one
    uint vocabulary;
    uint stride;
} push;

shared float weight[CANDIDATES];
shared float reached[CANDIDATES];  // by the candidates up to this one

// A number that is known to lie in [low, high].
struct Bounds {
    float low;
    float high;
};

// Keys of four logits as they are drawn from.
uvec4 drawn_keys(uvec4 bits, Draw draw, uint id) {
    if (!is_absent(draw.allowed) && id < push.vocabulary) {
        bits = masked(bits, draw.allowed, id);
    }
    return keys_of(within_vocabulary(bits, id, push.vocabulary));
}

void keep_keys(uint quad, uvec4 key) {
    keys[quad * 4] = key.x;
    keys[quad * 4 + 1] = key.y;
    keys[quad * 4 + 2] = key.z;
    keys[quad * 4 + 3] = key.w;
}

uint id_of(uint quad) {
    return best[quad / (BLOCK_IDS / 4)].id + quad % (BLOCK_IDS / 4) * 4;
}

// Reads the keys of the blocks in `best`.
void read_blocks(Draw draw, uint row) {
    uint lane = gl_LocalInvocationID.x;
    bool changes = draw.changes > 0;
    for (uint quad = lane; quad < CANDIDATES * BLOCK_IDS / 4; quad += 256) {
        uint id = id_of(quad);
        uvec4 bits = id < push.vocabulary ? push.logits.value[row * (push.stride / 4) + id / 4] : uvec4(0);
        keep_keys(quad, changes ? bits : drawn_keys(bits, draw, id));
    }
    if (lane < CANDIDATES) {
        best[lane].at = lane * BLOCK_IDS;
    }
    barrier();
    if (!changes) {
        return;
    }
    if (lane < CANDIDATES) {
        uint first = best[lane].id;
        uint end = draw.first_change + draw.changes;
        for (uint i = change_from(push.changes, draw, first); i < end; i++) {
            Change change = push.changes.change[i];
            if (change.id >= first + BLOCK_IDS) {
                break;
            }
            uint at = lane * BLOCK_IDS + change.id - first;
            keys[at] = floatBitsToUint(changed(uintBitsToFloat(keys[at]), change));
        }
    }
    barrier();
    for (uint quad = lane; quad < CANDIDATES * BLOCK_IDS / 4; quad += 256) {
        uvec4 bits = uvec4(keys[quad * 4], keys[quad * 4 + 1], keys[quad * 4 + 2], keys[quad * 4 + 3]);
        keep_keys(quad, drawn_keys(bits, draw, id_of(quad)));
    }
    barrier();
}

// The best key of `size` ids.
uint peak_of(Container container, uint size, uint row, uint parts) {
    uint most = NOTHING;
    if (size < BLOCK_IDS) {
        for (uint i = 0; i < size; i++) {
            most = max(most, keys[container.at + i]);
        }
    } else {
        uint first = container.id / BLOCK_IDS;
        uint last = min(first + size / BLOCK_IDS, parts * PART_BLOCKS);
        for (uint i = first; i < last; i++) {
            most = max(most, push.peaks.value[row * parts * PART_BLOCKS + i]);
        }
    }
    return most;
}

// Leaves the 64 best ids in `best`.
void descend(Draw draw, uint row, uint parts) {
    uint lane = gl_LocalInvocationID.x;
    uint size = 1;
    while (size * CHILDREN < push.vocabulary) {
        size *= 4;
    }
    if (size < BLOCK_IDS) {
        if (lane < CANDIDATES) {
            best[lane] = Container(NOTHING, lane * BLOCK_IDS, 0);
        }
        barrier();
        read_blocks(draw, row);
    }
    Container mine = Container(NOTHING, lane * size, lane * size);
    for (;;) {
        if (mine.id < push.vocabulary) {
            mine.key = peak_of(mine, size, row, parts);
        }
        keep_best(mine, size == 1);
        if (size == BLOCK_IDS) {
            read_blocks(draw, row);
        }
        if (size == 1) {
            break;
        }
        size /= 4;
        Container parent = best[lane / 4];
        mine = Container(NOTHING, parent.id + lane % 4 * size, parent.at + lane % 4 * size);
    }
}

// The sum of all weights, by the parts' sums.
float whole_mass(uint row, uint parts, float most, float inverse, bool raw) {
    precise float sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < parts; i += 256) {
        Mass mass = push.masses.part[row * parts + i];
        sum += (raw ? mass.raw_sum : mass.sum) *
               weights_of(vec4(raw ? mass.raw_most : mass.most), most, inverse).x;
    }
    return group_sum(sum);
}

// The largest logit as the model has it; -infinity where there is none.
float raw_most(uint row, uint parts) {
    uint most = key_of(MINUS_INFINITY);
    for (uint i = gl_LocalInvocationID.x; i < parts; i += 256) {
        most = max(most, key_of(floatBitsToUint(push.masses.part[row * parts + i].raw_most)));
    }
    return value_of(group_max(most));
}

// Weights of the candidates, and their running sums with the rounding errors carried along (Knuth's two-sum).
void weigh(float most, float inverse) {
    uint lane = gl_LocalInvocationID.x;
    if (lane < CANDIDATES) {
        bool there = best[lane].key != NOTHING;
        weight[lane] = there ? weights_of(vec4(value_of(best[lane].key)), most, inverse).x : 0.0;
    }
    barrier();
    if (lane < CANDIDATES) {
        precise float sum = 0.0;
        precise float error = 0.0;
        for (uint i = 0; i <= lane; i++) {
            precise float next = sum + weight[i];
            precise float part = next - sum;
            error += (sum - (next - part)) + (weight[i] - part);
            sum = next;
        }
        reached[lane] = sum + error;
    }
    barrier();
}

// How many of the first `count` running sums do not exceed `x`.
uint count_up_to(float x, uint count) {
    uint low = 0;
    uint high = count;
    while (low < high) {
        uint middle = (low + high) / 2;
        if (reached[middle] <= x) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// How many of the first `count` running sums are below `x`.
uint count_below(float x, uint count) {
    uint low = 0;
    uint high = count;
    while (low < high) {
        uint middle = (low + high) / 2;
        if (reached[middle] < x) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// The candidate that is drawn, or CANDIDATES where only the whole row can tell. total: of all weights.
uint drawn_candidate(Draw draw, float total) {
    uint count = 0;  // candidates that can be drawn at all
    while (count < CANDIDATES && weight[count] > 0.0) {
        count++;
    }
    float last = weight[count - 1];
    float candidates = reached[count - 1];
    bool tail = count == CANDIDATES;  // whether ids beyond the candidates may be kept
    uint surely = count;              // of the candidates, those certainly kept
    uint perhaps = count;             // those possibly kept
    float others = float(push.vocabulary - count);
    Bounds kept = Bounds(candidates, candidates);
    if (tail) {
        kept.low = max(candidates, total * (1.0 - SUM_SLACK));
        kept.high = max(candidates, total * (1.0 + SUM_SLACK));
    }

    if (draw.top_k > 0 && draw.top_k <= count) {
        tail = false;
        surely = draw.top_k;
        perhaps = draw.top_k;
        kept = Bounds(reached[draw.top_k - 1], reached[draw.top_k - 1]);
    } else if (draw.top_k > 0 && tail && draw.top_k < push.vocabulary) {
        /* The best ids of the tail have no less than their number's share of it, and none is above the last one. */
        float wanted = float(draw.top_k - count);
        kept.low = candidates + (kept.low - candidates) * (wanted / others) * (1.0 - SUM_SLACK);
        kept.high = min(kept.high, candidates + wanted * last * (1.0 + SLACK));
        kept.low = min(kept.low, kept.high);
    }

    if (draw.top_p < 1.0) {
        Bounds goal = Bounds(draw.top_p * kept.low * (1.0 - SLACK), draw.top_p * kept.high * (1.0 + SLACK));
        uint low = count_below(goal.low, count) + 1;
        uint high = count_below(goal.high, count) + 1;
        if (high <= count || !tail) {
            tail = false;
            surely = min(surely, low);
            perhaps = min(perhaps, high);
            kept = Bounds(reached[surely - 1], reached[perhaps - 1]);
        } else {
            surely = min(surely, low);
            kept.low = low <= count ? reached[low - 1] : max(candidates, goal.low);
            kept.high = min(kept.high, max(goal.high, candidates) + last);
        }
    }

    if (draw.min_p > 0.0) {
        uint likely = 1;
        while (likely < count && weight[likely] >= draw.min_p) {
            likely++;
        }
        if (likely < count || !tail) {
            tail = false;
            surely = min(surely, likely);
            perhaps = min(perhaps, likely);
            kept = Bounds(reached[surely - 1], reached[perhaps - 1]);
        } else {
            /* What is dropped of the tail is less likely than min_p, each id of it. */
            kept.low = max(reached[surely - 1], kept.low - others * draw.min_p * (1.0 + SUM_SLACK));
        }
    }

    uint low = count_up_to(draw.uniform_ * kept.low * (1.0 - SLACK), count);
    uint high = count_up_to(draw.uniform_ * kept.high * (1.0 + SLACK), count);
    if (!tail && surely == perhaps) {
        low = min(low, surely - 1);
        high = min(high, surely - 1);
    }
    return low == high && low < surely ? low : CANDIDATES;
}

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint row = gl_WorkGroupID.y;
    uint parts = (push.vocabulary + PART_IDS - 1) / PART_IDS;
    Draw draw = push.draws.row[row];

    descend(draw, row, parts);
    float most = value_of(best[0].key);
    bool greedy = draw.inverse == 0.0 || !is_finite(draw.inverse) || !is_finite(most);
    float total = 0.0;
    if (!greedy) {
        total = whole_mass(row, parts, most, draw.inverse, false);
        weigh(most, draw.inverse);
    }
    float lse = 0.0;
    if ((draw.flags & WANT_LSE) != 0) {
        lse = raw_most(row, parts);
        float sum = whole_mass(row, parts, lse, 1.0, true);
        lse = is_finite(lse) ? lse + max(log(sum), 0.0) : lse;  // the best one alone makes `sum` 1
    }

    if (lane < CANDIDATES) {
        bool there = best[lane].key != NOTHING;
        push.picked.row[row].candidate[lane] =
            Candidate(value_of(there ? best[lane].key : key_of(MINUS_INFINITY)), there ? best[lane].id : 0xffffffffu);
    }
    if (lane == 0) {
        uint index = greedy ? 0 : drawn_candidate(draw, total);
        bool decided = index < CANDIDATES;
        uint id = best[decided ? index : 0].key != NOTHING ? best[decided ? index : 0].id : 0;
        uvec4 bits = push.logits.value[row * (push.stride / 4) + id / 4];
        push.picked.row[row].id = decided ? int(id) : -1;
        push.picked.row[row].flags = decided ? 0 : TAIL;
        push.picked.row[row].logit = uintBitsToFloat(bits[id % 4]);
        push.picked.row[row].lse = lse;
        push.sampled.value[row] = id;
    }
}
