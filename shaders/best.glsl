// The 64 best ids of a row, by a descent: of containers of neighbouring ids the 64 with the best peaks are kept, each is
// cut in four, and so on down to single ids. What is among the 64 best ids lies in one of the 64 best containers: each
// of these has an id that is better than all of any other's. Equal logits: the lower id is the better one.

#ifndef BEST_GLSL
#define BEST_GLSL

#include "sampling.glsl"

const uint CHILDREN = 256;

// A container: its first id; `at`: where its keys begin in `keys`, once they are there.
struct Container {
    uint key;  // its best
    uint id;
    uint at;
};

shared uvec4 child_keys[CHILDREN / 4];
shared uint chosen[CHILDREN / 32];        // a bit for each child
shared Container best[CANDIDATES];        // key NOTHING where there are fewer
shared uint keys[CANDIDATES * BLOCK_IDS]; // of the ids of the 64 best blocks

// Keeps the containers of this group's lanes, which are in order of ids, that are among the 64 best: in order of ids,
// or `sorted`, the best one first.
void keep_best(Container mine, bool sorted) {
    uint lane = gl_LocalInvocationID.x;
    child_keys[lane / 4][lane % 4] = mine.key;
    if (lane < CHILDREN / 32) {
        chosen[lane] = 0;
    }
    barrier();
    uvec4 ranks = uvec4(0);
    for (uint i = 0; i < CHILDREN / 4; i++) {
        /* Of equal ones those of the lanes before are better. */
        uvec4 better = mine.key + uvec4(greaterThanEqual(uvec4(0, 1, 2, 3) + i * 4, uvec4(lane)));
        ranks += uvec4(greaterThanEqual(child_keys[i], better));
    }
    uint rank = ranks.x + ranks.y + ranks.z + ranks.w;
    if (rank < CANDIDATES) {
        atomicOr(chosen[lane / 32], 1u << lane % 32);
    }
    barrier();
    if (rank < CANDIDATES) {
        uint before = bitCount(chosen[lane / 32] & ((1u << lane % 32) - 1));
        for (uint i = 0; i < lane / 32; i++) {
            before += bitCount(chosen[i]);
        }
        best[sorted ? rank : before] = mine;
    }
    barrier();
}

#endif
