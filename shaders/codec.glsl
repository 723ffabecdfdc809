// How rows of K and V are kept: the codec of the variant. The entry declares HEAD_SIZE, LANES and
// `shared vec4 heads[]`; one that only moves what is stored defines CODEC_STORED and needs no `heads`.
// A codec is, for units of 16 bytes:
//   CODEC_VALUES             values of a unit
//   CODEC_ROTATED            where it rotates: how many neighbouring values together
//   CODEC_SCALED             where each block of 32 values has a scale, a half
//   key_quad(unit, i)        quad i of a unit, without the scale
//   CODEC_PAIRS              where a quad of values is found in a pair of words; else it is found in one word
//   piece_of(quad)           which of a row's pieces, pairs or words, that is
//   quad_of_piece(piece, quad)  the quad, without the scale
// and, for an entry that defines CODEC_ENCODES:
//   prepare(feedback, start) where CODEC_PREPARES is defined: called once for a head before the two below
//   block_scale(first)       the half that a block gets, of the 8 quads of `heads` from `first` on
//   encode_unit(first, half) the unit of the CODEC_VALUES / 4 quads of `heads` from `first` on

#ifndef CODEC_GLSL
#define CODEC_GLSL

#include "buffers.glsl"
#include "half.glsl"

#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

// 16 and 8 bytes in words as long as there are: some devices load word by word.
BUFFER readonly buffer LongUnits { u64vec2 value[]; };
BUFFER readonly buffer LongWords { uint64_t value[]; };

uvec4 load_unit(Units plane, uint index) {
    u64vec2 unit = LongUnits(plane).value[index];
    return uvec4(unpackUint2x32(unit.x), unpackUint2x32(unit.y));
}

#if defined(CODEC_F16)
#include "codec_f16.glsl"
#elif defined(CODEC_Q8_0)
#include "codec_q8_0.glsl"
#elif defined(CODEC_TQ4)
#include "codec_tq4.glsl"
#endif

#if defined(CODEC_ROTATED) && !defined(CODEC_STORED)
#include "rotate.glsl"
#endif

#ifdef CODEC_PAIRS
#define CODEC_PIECE uvec2
const uint UNIT_PIECES = 2;

uvec2 load_piece(Units plane, uint index) {
    return unpackUint2x32(LongWords(plane).value[index]);
}
#else
#define CODEC_PIECE uint
const uint UNIT_PIECES = 4;

uint load_piece(Units plane, uint index) {
    return Words(plane).value[index];
}
#endif

const uint HEAD_QUADS = HEAD_SIZE / 4;
const uint HEAD_UNITS = HEAD_SIZE / CODEC_VALUES;
const uint HEAD_BLOCKS = HEAD_SIZE / 32;
const uint UNIT_QUADS = CODEC_VALUES / 4;
const uint STRIP = 32;  // positions whose keys lie interleaved

// Where a head's rows are, `head` counting the heads of all regions, each with `positions` positions.
uint key_unit(uint head, uint positions, uint position, uint unit) {
    return ((head * (positions / STRIP) + position / STRIP) * HEAD_UNITS + unit) * STRIP + position % STRIP;
}

uint key_scale(uint head, uint positions, uint position, uint block) {
    return ((head * (positions / STRIP) + position / STRIP) * HEAD_BLOCKS + block) * STRIP + position % STRIP;
}

uint value_unit(uint head, uint positions, uint position) {
    return (head * positions + position) * HEAD_UNITS;
}

uint value_scale(uint head, uint positions, uint position) {
    return (head * positions + position) * HEAD_BLOCKS;
}

#endif
