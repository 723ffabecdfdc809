// See activations.glsl. A block of a line is cut into pieces of 8 bytes; piece p of all LINES' is kept by lane
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

const uint KEPT = (LINES * PIECES + SUBGROUP - 1) / SUBGROUP;
const uint KEPT_SCALES = (LINES + SUBGROUP - 1) / SUBGROUP;

Half kept[2 * KEPT];
uvec2 kept_scale[KEPT_SCALES];

void fetch_activations(uint first_row, uint block) {
    [[unroll]] for (uint i = 0; i < KEPT; i++) {
        uint piece = i * SUBGROUP + gl_SubgroupInvocationID;
        uint line = line_of(first_row, min(piece / PIECES, LINES - 1));
#ifdef FLOAT_WEIGHTS
        uint start = line * (push.x_stride / 2);
#else
        uint start = line * push.blocks * PIECES;
#endif
        uvec2 words = load_pair(WordPairs(push.x_quants), start + block * PIECES + piece % PIECES);
        kept[2 * i] = half_of(words.x);
        kept[2 * i + 1] = half_of(words.y);
    }
#ifndef FLOAT_WEIGHTS
    [[unroll]] for (uint i = 0; i < KEPT_SCALES; i++) {
        uint line = line_of(first_row, min(i * SUBGROUP + gl_SubgroupInvocationID, LINES - 1));
        kept_scale[i] = load_pair(push.x_scales, line * push.blocks + block);
    }
#endif
}

// Half `number` of the halves of a line's block.
Half exchanged(uint line, uint number) {
    uint piece = line * PIECES + number / 2;
    return subgroupShuffle(kept[2 * (piece / SUBGROUP) + number % 2], piece % SUBGROUP);
}

Activations activations_of(uint line) {
    Activations x;
    [[unroll]] for (uint i = 0; i < 8; i++) {
#ifdef FLOAT_WEIGHTS
        x.quad[i] = vec4(
            exchanged(line, 4 * i), exchanged(line, 4 * i + 1), exchanged(line, 4 * i + 2), exchanged(line, 4 * i + 3)
        );
#else
        x.quad[i] = exchanged(line, i);
#endif
    }
#ifndef FLOAT_WEIGHTS
    uvec2 scale = subgroupShuffle(kept_scale[line / SUBGROUP], line % SUBGROUP);
    x.scale = uintBitsToFloat(scale.x);
    x.sum = ivec2(int(scale.y << 16), int(scale.y)) >> 16;
#endif
    return x;
}

#endif
