// Rotated over the whole head, a power of two of at least 32 values; then value = scale * (q - 8), q of 4 bits: GGML's
// Q4_0. Byte i of a unit holds values i (low nibble) and i + 16.

#define CODEC_SCALED
#define CODEC_ROTATED HEAD_SIZE

const uint CODEC_VALUES = 32;

// The four low nibbles of a word's bytes.
vec4 nibbles(uint word) {
    return vec4(uvec4(word, word >> 8, word >> 16, word >> 24) & 15) - 8.0;
}

vec4 key_quad(uvec4 unit, uint i) {
    return nibbles(unit[i % 4] >> 4 * (i / 4));
}

vec4 value_quad(Units plane, uint first, uint quad) {
    uint i = quad % 8;
    return nibbles(Words(plane).value[(first + quad / 8) * 4 + i % 4] >> 4 * (i / 4));
}

// The value of largest magnitude, the first of several, lands on -8, the end of the range that has one more step.
uint block_scale(uint first) {
    float peak = 0.0;
    for (uint i = 0; i < 32; i++) {
        float x = heads[first + i / 4][i % 4];
        peak = abs(x) > abs(peak) ? x : peak;
    }
    precise float scale = peak / -8.0;
    return half_of_float(scale);
}

uvec4 encode_unit(uint first, uint scale) {
    float stored = float_of_half(scale);
    float inverse = stored != 0.0 ? 1.0 / stored : 0.0;
    uvec4 unit;
    for (uint i = 0; i < 4; i++) {
        precise vec4 low = heads[first + i] * inverse;
        precise vec4 high = heads[first + 4 + i] * inverse;
        uvec4 bytes = uvec4(clamp(low + 8.5, 0.0, 15.0)) | uvec4(clamp(high + 8.5, 0.0, 15.0)) << 4;
        unit[i] = bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24;
    }
    return unit;
}
