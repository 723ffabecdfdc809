// Rotated by blocks of 32, then value = scale * q, q a signed byte: GGML's Q8_0. A head's size is a multiple of 32.

#define CODEC_SCALED
#define CODEC_ROTATED 32

const uint CODEC_VALUES = 16;

vec4 signed_bytes(uint word) {
    int bytes = int(word);
    return vec4(bitfieldExtract(bytes, 0, 8), bitfieldExtract(bytes, 8, 8), bitfieldExtract(bytes, 16, 8), bytes >> 24);
}

vec4 key_quad(uvec4 unit, uint i) {
    return signed_bytes(unit[i]);
}

uint piece_of(uint quad) {
    return quad;
}

vec4 quad_of_piece(uint word, uint quad) {
    return signed_bytes(word);
}

#ifdef CODEC_ENCODES

uint block_scale(uint first) {
    float most = 0.0;
    for (uint i = 0; i < 8; i++) {
        vec4 x = abs(heads[first + i]);
        most = max(max(max(x.x, x.y), max(x.z, x.w)), most);
    }
    precise float scale = most / 127.0;
    return half_of_float(scale);
}

// To the nearest integer, halves away from zero.
vec4 rounded(vec4 x) {
    vec4 whole = trunc(x);
    return whole + mix(vec4(0.0), sign(x), greaterThanEqual(abs(x - whole), vec4(0.5)));
}

uvec4 encode_unit(uint first, uint scale) {
    float stored = float_of_half(scale);
    float inverse = stored != 0.0 ? 1.0 / stored : 0.0;
    uvec4 unit;
    for (uint i = 0; i < 4; i++) {
        precise vec4 scaled = heads[first + i] * inverse;
        uvec4 bytes = uvec4(ivec4(clamp(rounded(scaled), -127.0, 127.0))) & 0xff;
        unit[i] = bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24;
    }
    return unit;
}

#endif
