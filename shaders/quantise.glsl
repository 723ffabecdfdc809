// Activations become bytes, in blocks of 32: q = round(x * (127 / max |x|)), to even; scale = max |x| / 127.
// What is not finite becomes 0; a block without anything above 0 has scale 0.
//
// Eight neighbouring lanes hold a block, four consecutive values each. Include this behind the entry's
// `layout(local_size_x = ...) in`; the group's size is a multiple of 8.

#ifndef QUANTISE_GLSL
#define QUANTISE_GLSL

const uint QUANTISE_LANES = 8;

shared float quantise_most[gl_WorkGroupSize.x];
shared int quantise_sum[gl_WorkGroupSize.x];

float larger(float x, float most) {
    return x > most ? x : most;
}

// Returns the four bytes of this lane's values. scale: of the block, the same in its eight lanes: the bits of the
// scale, then the sums of the first and of the last 16 bytes, 16 bits each.
// Every lane of the group must call it, with zeros where it has no values; the group meets in it.
uint quantise(vec4 x, out uvec2 scale) {
    uint lane = gl_LocalInvocationID.x;
    uint first = lane - lane % QUANTISE_LANES;
    vec4 size = abs(x);
    quantise_most[lane] = larger(size.w, larger(size.z, larger(size.y, larger(size.x, 0.0))));
    barrier();
    float most = 0.0;
    for (uint i = 0; i < QUANTISE_LANES; i++) {
        most = larger(quantise_most[first + i], most);
    }
    precise float inverse = most > 0.0 ? 127.0 / most : 0.0;
    precise vec4 scaled = x * inverse;
    ivec4 q = ivec4(roundEven(mix(vec4(0.0), scaled, lessThanEqual(abs(scaled), vec4(127.5)))));
    quantise_sum[lane] = q.x + q.y + q.z + q.w;
    barrier();
    ivec2 sums = ivec2(0);
    for (uint i = 0; i < QUANTISE_LANES / 2; i++) {
        sums.x += quantise_sum[first + i];
        sums.y += quantise_sum[first + QUANTISE_LANES / 2 + i];
    }
    precise float unit = most / 127.0;
    scale = uvec2(floatBitsToUint(unit), uint(sums.x & 0xffff) | uint(sums.y) << 16);
    uvec4 bytes = uvec4(q & 0xff);
    return bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24;
}

// What its bytes leave of a lane's values.
vec4 rest_of(vec4 x, uint bytes, uvec2 scale) {
    int word = int(bytes);
    precise vec4 said = uintBitsToFloat(scale.x) * vec4(ivec4(word << 24, word << 16, word << 8, word) >> 24);
    precise vec4 rest = x - said;
    return rest;
}

#endif
