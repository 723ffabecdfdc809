// Loads of 16 and 8 bytes. FEATURE_SHUFFLE stands for devices on which a load costs as much for 8 bytes of a lane as
// for 4, and no instruction loads more.

#ifndef LOADS_GLSL
#define LOADS_GLSL

#include "buffers.glsl"

#ifdef FEATURE_SHUFFLE

#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

BUFFER readonly buffer Longs { uint64_t value[]; };

uvec2 load_pair(WordPairs pairs, uint index) {
    return unpack32(Longs(pairs).value[index]);
}

uvec4 load_unit(Units units, uint index) {
    return uvec4(unpack32(Longs(units).value[2 * index]), unpack32(Longs(units).value[2 * index + 1]));
}

#else

uvec2 load_pair(WordPairs pairs, uint index) {
    return pairs.value[index];
}

uvec4 load_unit(Units units, uint index) {
    return units.value[index];
}

#endif
#endif
