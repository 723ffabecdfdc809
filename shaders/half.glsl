// Floats to 16-bit floats, rounded to nearest even whatever the device's own conversion does.

#ifndef HALF_GLSL
#define HALF_GLSL

uint half_of_float(float value) {
    uint bits = floatBitsToUint(value);
    uint sign = bits >> 16 & 0x8000;
    uint magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return sign | 0x7e00;
    }
    if (magnitude >= 0x47800000) {
        return sign | 0x7c00;  // 65536 and up; the rounding below carries 65520 and up to infinity as well
    }
    if (magnitude >= 0x38800000) {
        return sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    }
    // Adding 0.5 leaves a sum whose last mantissa bit weighs 2^-24, a half's smallest step.
    precise float sum = uintBitsToFloat(magnitude) + 0.5;
    return sign | floatBitsToUint(sum) - 0x3f000000;
}

#endif
