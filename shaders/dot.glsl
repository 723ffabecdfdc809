// Exact dot products of bytes, by the device's own instruction (FEATURE_DOT) or by plain arithmetic.
//
// Quad: four signed bytes in the form that is multiplied. Dot: a sum of their products.
// Plain arithmetic is that of floats, which devices multiply faster than integers: a sum of 32 products of bytes is an
// integer below 2^24, so it is exact in any order, fused or not.

#ifndef DOT_GLSL
#define DOT_GLSL

#ifdef FEATURE_DOT

#extension GL_EXT_spirv_intrinsics : require

#define Quad int
#define Dot int

// OpSDot (4450) of packed bytes (format 0); capabilities DotProductInput4x8BitPacked and DotProduct.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int signed_dot(int a, int b, spirv_literal int format);

Quad quad_of(uint bytes) {
    return int(bytes);
}

Dot add_dot(Dot sum, Quad a, Quad b) {
    return sum + signed_dot(a, b, 0);
}

#else

#define Quad vec4
#define Dot float

Quad quad_of(uint bytes) {
    int word = int(bytes);
    return vec4(ivec4(word << 24, word << 16, word << 8, word) >> 24);
}

Dot add_dot(Dot sum, Quad a, Quad b) {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

#endif
#endif
