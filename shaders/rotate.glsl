// What rotating codecs do to heads: each value times a fixed sign, then the orthonormal Walsh-Hadamard transform of
// each run of CODEC_ROTATED neighbouring values (a power of two, at least 4). It is the host's, in the order of its
// sums (hostkernels/codecs.c).
//
// The entry declares `shared vec4 heads[]`, which holds whole heads, and LANES, the group's size. The group meets in
// these functions, first and last.

#ifndef ROTATE_GLSL
#define ROTATE_GLSL

#extension GL_EXT_control_flow_attributes : require

// The sign of value i: a bit of a Weyl sequence's mixed high half.
float sign_of(uint i) {
    uint h = (i + 1) * 0x9e3779b9u;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    return h >> 31 != 0 ? -1.0 : 1.0;
}

// The signs of quad `quad` of a head.
vec4 signs_of(uint quad) {
    uint i = quad * 4;
    return vec4(sign_of(i), sign_of(i + 1), sign_of(i + 2), sign_of(i + 3));
}

// 1 / sqrt(size) of a power of two, to the last bit.
float hadamard_scale(uint size) {
    uint exponent = findMSB(size);
    float whole = uintBitsToFloat((127 - exponent / 2) << 23);
    return (exponent & 1) != 0 ? whole * 0.70710677 : whole;
}

// Transform the first `quads` quads of `heads`.
void hadamard(uint quads) {
    uint lane = gl_LocalInvocationID.x;
    barrier();
    for (uint i = lane; i < quads; i += LANES) {
        precise vec4 a = heads[i];
        a = vec4(a.x + a.y, a.x - a.y, a.z + a.w, a.z - a.w);
        a = vec4(a.x + a.z, a.y + a.w, a.x - a.z, a.y - a.w);
        heads[i] = a;
    }
    barrier();
    [[dont_unroll]] for (uint stride = 1; stride < CODEC_ROTATED / 4; stride *= 2) {
        for (uint i = lane; i < quads / 2; i += LANES) {
            uint at = (i / stride) * 2 * stride + i % stride;
            precise vec4 a = heads[at];
            precise vec4 b = heads[at + stride];
            precise vec4 sum = a + b;
            precise vec4 difference = a - b;
            heads[at] = sum;
            heads[at + stride] = difference;
        }
        barrier();
    }
    for (uint i = lane; i < quads; i += LANES) {
        precise vec4 scaled = heads[i] * hadamard_scale(CODEC_ROTATED);
        heads[i] = scaled;
    }
    barrier();
}

#endif
