// See activations.glsl. A block of a row is cut into pieces of 8 bytes; piece p of all ROWS rows' is kept by lane
// p % SUBGROUP as its number p / SUBGROUP, each half in the form in which it is multiplied.

#ifndef ACTIVATIONS_SHUFFLE_GLSL
#define ACTIVATIONS_SHUFFLE_GLSL

#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

#ifdef FLOAT_WEIGHTS
#define PIECES 16
#define Half float
#define half_of uintBitsToFloat
#else
#define PIECES 4
#define Half Quad
#define half_of quad_of
#endif

const uint KEPT = (ROWS * PIECES + SUBGROUP - 1) / SUBGROUP;
const uint KEPT_SCALES = (ROWS + SUBGROUP - 1) / SUBGROUP;

Half kept[2 * KEPT];
uvec2 kept_scale[KEPT_SCALES];

uint fetched_of(uint first_row, uint row) {
    return min(first_row + min(row, ROWS - 1), push.rows - 1);
}

void fetch_activations(uint first_row, uint block) {
    [[unroll]] for (uint i = 0; i < KEPT; i++) {
        uint piece = i * SUBGROUP + gl_SubgroupInvocationID;
        uint row = fetched_of(first_row, piece / PIECES);
#ifdef FLOAT_WEIGHTS
        uint start = row * (push.x_stride / 2);
#else
        uint start = row * push.blocks * PIECES;
#endif
        uvec2 words = load_pair(WordPairs(push.x_quants), start + block * PIECES + piece % PIECES);
        kept[2 * i] = half_of(words.x);
        kept[2 * i + 1] = half_of(words.y);
    }
#ifndef FLOAT_WEIGHTS
    [[unroll]] for (uint i = 0; i < KEPT_SCALES; i++) {
        uint row = fetched_of(first_row, i * SUBGROUP + gl_SubgroupInvocationID);
        kept_scale[i] = load_pair(push.x_scales, row * push.blocks + block);
    }
#endif
}

// Half `number` of the halves of a row's block.
Half exchanged(uint row, uint number) {
    uint piece = row * PIECES + number / 2;
    return subgroupShuffle(kept[2 * (piece / SUBGROUP) + number % 2], piece % SUBGROUP);
}

Activations activations_of(uint row) {
    Activations x;
    [[unroll]] for (uint i = 0; i < 8; i++) {
#ifdef FLOAT_WEIGHTS
        x.quad[i] = vec4(
            exchanged(row, 4 * i), exchanged(row, 4 * i + 1), exchanged(row, 4 * i + 2), exchanged(row, 4 * i + 3)
        );
#else
        x.quad[i] = exchanged(row, i);
#endif
    }
#ifndef FLOAT_WEIGHTS
    uvec2 scale = subgroupShuffle(kept_scale[row / SUBGROUP], row % SUBGROUP);
    x.scale = uintBitsToFloat(scale.x);
    x.sum = ivec2(int(scale.y << 16), int(scale.y)) >> 16;
#endif
    return x;
}

#endif
