// Values as 16-bit floats. A head's size is a multiple of 8.

#define CODEC_PAIRS

const uint CODEC_VALUES = 8;

vec4 key_quad(uvec4 unit, uint i) {
    return vec4(unpackHalf2x16(unit[2 * i]), unpackHalf2x16(unit[2 * i + 1]));
}

uint piece_of(uint quad) {
    return quad;
}

vec4 quad_of_piece(uvec2 halves, uint quad) {
    return vec4(unpackHalf2x16(halves.x), unpackHalf2x16(halves.y));
}

#ifdef CODEC_ENCODES

uint half_pair(vec2 x) {
    return half_of_float(x.x) | half_of_float(x.y) << 16;
}

uvec4 encode_unit(uint first, uint scale) {
    return uvec4(half_pair(heads[first].xy), half_pair(heads[first].zw), half_pair(heads[first + 1].xy),
                 half_pair(heads[first + 1].zw));
}

#endif
