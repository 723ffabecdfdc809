// What the kernels that pick tokens share: how a row is drawn, its changed logits, floats as keys, weights.

#ifndef SAMPLING_GLSL
#define SAMPLING_GLSL

#include "buffers.glsl"

const uint CANDIDATES = 64;      // best ids of a row that are told of: HK_HEAD of the host's sampler
const uint BLOCK_IDS = 64;       // neighbouring ids that have one peak
const uint PART_IDS = 4096;      // neighbouring ids that one group looks at
const uint PART_BLOCKS = PART_IDS / BLOCK_IDS;
const uint NOTHING = 0;          // key of what is no number
const uint NOT_A_NUMBER = 0x7fc00000u;
const uint MINUS_INFINITY = 0xff800000u;

const uint WANT_LSE = 1;         // bit of Draw.flags: the raw logits' log-sum-exp is asked for

struct Draw {
    float inverse;      // 1 / temperature; 0 and infinity pick the best id
    float top_p;        // 1: off
    float min_p;        // 0: off
    float uniform_;     // in [0, 1]
    uint top_k;         // 0: off
    uint first_change;  // its changes, in ascending order of ids, each id once
    uint changes;
    uint flags;
    Words allowed;      // a bit for each id, lowest first: whether it may be picked; address 0: all may
    uvec2 unused;
};

// x = logit + bias; x is divided by `repeat` if positive, else multiplied by it; then `minus` is taken off.
struct Change {
    uint id;
    float bias;
    float repeat;
    float minus;
};

BUFFER readonly buffer Draws { Draw row[]; };
BUFFER readonly buffer Changes { Change change[]; };

// Sums of e^((logit - most) * inverse) over a part's ids: `raw` of the logits as they are with inverse 1, the other of
// those that the row is drawn from.
struct Mass {
    float most;
    float sum;
    float raw_most;
    float raw_sum;
};

BUFFER readonly buffer Masses { Mass part[]; };
BUFFER writeonly buffer MutableMasses { Mass part[]; };

float changed(float logit, Change change) {
    precise float x = logit + change.bias;
    precise float repeated = x > 0.0 ? x / change.repeat : x * change.repeat;
    precise float less = repeated - change.minus;
    return less;
}

// The first of a row's changes whose id is `id` or above.
uint change_from(Changes changes, Draw draw, uint id) {
    uint low = draw.first_change;
    uint high = low + draw.changes;
    while (low < high) {
        uint middle = (low + high) / 2;
        if (changes.change[middle].id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Integers that are ordered as their floats are; both zeros have one key. NaN has the lowest, NOTHING.
uint key_of(uint bits) {
    uint plain = bits == 0x80000000u ? 0 : bits;
    uint key = plain ^ (int(plain) < 0 ? 0xffffffffu : 0x80000000u);
    return (bits & 0x7fffffffu) > 0x7f800000u ? NOTHING : key;
}

uvec4 keys_of(uvec4 bits) {
    return uvec4(key_of(bits.x), key_of(bits.y), key_of(bits.z), key_of(bits.w));
}

float value_of(uint key) {
    return uintBitsToFloat(key ^ ((key & 0x80000000u) != 0 ? 0x80000000u : 0xffffffffu));
}

bool is_finite(float x) {
    return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u;
}

// Bits of four logits, the first one's id a multiple of 4: -infinity for what may not be picked.
uvec4 masked(uvec4 bits, Words allowed, uint id) {
    uint word = allowed.value[id / 32] >> id % 32;
    return mix(uvec4(MINUS_INFINITY), bits, notEqual(uvec4(word) & uvec4(1, 2, 4, 8), uvec4(0)));
}

// Bits of four logits: NaN for ids past the vocabulary.
uvec4 within_vocabulary(uvec4 bits, uint id, uint vocabulary) {
    return mix(uvec4(NOT_A_NUMBER), bits, lessThan(uvec4(0, 1, 2, 3) + id, uvec4(vocabulary)));
}

// e^x for x of at most 0, bit for bit as the host's sampler has it; 0 under -87.3 and for NaN. The argument is reduced
// by multiples of ln 2 in two parts (Cody and Waite, 1980), the rest is a Taylor series in Horner form.
vec4 weights_of(vec4 x) {
    bvec4 normal = greaterThanEqual(x, vec4(-87.3));
    vec4 clamped = mix(vec4(0.0), x, normal);
    precise vec4 shifted = clamped * 1.44269504 - 0.5;
    ivec4 n = ivec4(shifted);
    vec4 whole = vec4(n);
    precise vec4 r = (clamped - whole * 0.693359375) + whole * 2.12194440e-4;
    precise vec4 p = vec4(1.0 / 5040.0);
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    precise vec4 scaled = p * intBitsToFloat((n + 127) << 23);
    return mix(vec4(0.0), scaled, normal);
}

vec4 weights_of(vec4 logits, float most, float inverse) {
    precise vec4 x = (logits - most) * inverse;
    return weights_of(x);
}

#endif
