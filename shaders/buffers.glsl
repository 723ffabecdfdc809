// Device memory as kernels see it: a buffer is an address, and an address has one of these types.
// An address of the push block that is 0 stands for a buffer that is absent: see is_absent.
// The base of a buffer lies on a multiple of 16 bytes.

#ifndef BUFFERS_GLSL
#define BUFFERS_GLSL

#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_shader_16bit_storage : require

#define BUFFER layout(buffer_reference, std430, buffer_reference_align = 16)

// What a kernel only reads.
BUFFER readonly buffer Floats { float value[]; };
BUFFER readonly buffer FloatQuads { vec4 value[]; };
BUFFER readonly buffer FloatPairs { vec2 value[]; };
BUFFER readonly buffer Units { uvec4 value[]; };
BUFFER readonly buffer WordPairs { uvec2 value[]; };
BUFFER readonly buffer Words { uint value[]; };
BUFFER readonly buffer Halves { uint16_t value[]; };

// What a kernel writes, or writes and reads.
BUFFER buffer MutableFloats { float value[]; };
BUFFER buffer MutableFloatQuads { vec4 value[]; };
BUFFER buffer MutableUnits { uvec4 value[]; };
BUFFER buffer MutableWordPairs { uvec2 value[]; };
BUFFER buffer MutableWords { uint value[]; };
BUFFER buffer MutableHalves { uint16_t value[]; };

#define is_absent(buffer_address) (uvec2(buffer_address) == uvec2(0))

// The value of a 16-bit float's bits.
float float_of_half(uint bits) {
    return unpackHalf2x16(bits).x;
}

#endif
