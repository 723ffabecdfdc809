// Rotary embedding: pair i of a head turns by position * frequency i. The table holds cosines and sines, rows of
// `pairs` pairs: 256 rows for positions 0 to 255, then rows for positions 0, 256, 512, ...; a position's turn is the
// product of two rows as complex numbers. Scaling of what is turned is in the latter rows.

#ifndef ROPE_GLSL
#define ROPE_GLSL

#include "buffers.glsl"

const uint ROPE_FINE = 256;

// (cosine, sine) of pair i at `position`.
vec2 turn_of(FloatPairs table, uint pairs, uint position, uint i) {
    vec2 fine = table.value[position % ROPE_FINE * pairs + i];
    vec2 coarse = table.value[(ROPE_FINE + position / ROPE_FINE) * pairs + i];
    precise vec2 turn = vec2(coarse.x * fine.x - coarse.y * fine.y, coarse.y * fine.x + coarse.x * fine.y);
    return turn;
}

vec2 turned(vec2 pair, vec2 turn) {
    precise vec2 out_ = vec2(pair.x * turn.x - pair.y * turn.y, pair.x * turn.y + pair.y * turn.x);
    return out_;
}

#endif
