// A tile of weights and activations as halves in shared memory, for matmul_coop.comp: a step of COLUMNS columns at a
// time, two copies of it.
//     find_largest()         once, before anything else; meets
//     fetch(block)           load a step to registers
//     keep(copy)             write what was fetched to a copy of the tile
//     tile_unit(copy, line)  where a line begins: TILE_OUTPUTS lines of weights, then TILE_ROWS of activations
// Columns stand in an order that is the same in all lines.
//
// No half overflows. Activations are divided by the largest of their row over all columns and multiplied by LARGEST,
// which the sum undoes at the end; so a row's size does not matter, and what is 2^-28 of its largest is not yet 0.
// Weights are taken as they are: all that quantised layouts scale and shift by are halves themselves, bounded so that
// the sum of both stays below 65504, which no model comes near; floats are bounded there as well.

#ifndef MATMUL_COOP_GLSL
#define MATMUL_COOP_GLSL

#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

#include "matmul_push.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TERMS = 1;
layout(constant_id = 2) const uint TILE_ROWS = 64;
layout(constant_id = 3) const uint TILE_OUTPUTS = 128;

const uint COLUMNS = 32;
const uint HALVES = 8;  // of a unit of 16 bytes
// Units of a line; one is left free, so that eight lines lie in different banks.
const uint TILE_STRIDE = COLUMNS / HALVES + 1;
const uint LINES = TILE_OUTPUTS + TILE_ROWS;
const uint PIECES = (LINES + gl_WorkGroupSize.x - 1) / gl_WorkGroupSize.x;
const uint FINDERS = 8;  // neighbouring lanes that look through a row
const float MOST_HALF = 65504.0;
const float LEAST = 1e-30;  // rows without anything above count as zeros

shared uvec4 tile[2 * LINES * TILE_STRIDE];
shared uint largest[TILE_ROWS];  // bits of a float

uint first_row;
Block fetched[PIECES * TERMS];

uint tile_unit(uint copy, uint line) {
    return (copy * LINES + line) * TILE_STRIDE;
}

// What a row's activations are measured by: the largest value of floats, the largest scale of quantised blocks.
float largest_of(uint row) {
    return uintBitsToFloat(largest[row]);
}

// Where a row of the tile stands among all rows; past the last there are more of the last.
uint row_of(uint row) {
    return min(first_row + row, push.rows - 1);
}

#ifdef FLOAT_WEIGHTS

const float LARGEST = 16384.0;

float largest_within(uint row, uint finder) {
    uint start = row * (push.x_stride / 4);
    vec4 most = vec4(0.0);
    for (uint quad = finder; quad < push.blocks * 8; quad += FINDERS) {
        most = max(most, abs(uintBitsToFloat(push.x_quants.value[start + quad])));
    }
    return max(max(most.x, most.y), max(most.z, most.w));
}

void fetch_activations(uint piece, uint row, uint block) {
    uint start = row * (push.x_stride / 4) + block * 8;
    [[unroll]] for (uint i = 0; i < 8; i++) {
        fetched[piece].quad[i] = uintBitsToFloat(push.x_quants.value[start + i]);
    }
}

void fetch_weights(uint piece, uint output_, uint block) {
    fetched[piece] = weights_of(output_, block);
}

void keep_piece(uint piece, uint unit, float factor, bool shifted) {
    [[unroll]] for (uint i = 0; i < 4; i++) {
        vec4 low = clamp(fetched[piece].quad[2 * i] * factor, -MOST_HALF, MOST_HALF);
        vec4 high = clamp(fetched[piece].quad[2 * i + 1] * factor, -MOST_HALF, MOST_HALF);
        tile[unit + i] = uvec4(
            packHalf2x16(low.xy), packHalf2x16(low.zw), packHalf2x16(high.xy), packHalf2x16(high.zw)
        );
    }
}

#else

const float LARGEST = 128.0;
// Bounds of a scale, by which bytes are multiplied, and of a weight's shift, which is added.
const float MOST_SCALE = 255.0;
const float MOST_SHIFT = 32768.0;

float largest_within(uint row, uint finder) {
    float most = 0.0;
    for (uint block = finder; block < push.blocks; block += FINDERS) {
        most = max(most, uintBitsToFloat(push.x_scales.value[row * TERMS * push.blocks + block].x));
    }
    return most;
}

void fetch_activations(uint piece, uint row, uint block) {
    [[unroll]] for (uint term = 0; term < TERMS; term++) {
        uint index = (row * TERMS + term) * push.blocks + block;
        vec2 scale = vec2(uintBitsToFloat(push.x_scales.value[index].x));
        uvec4 low = push.x_quants.value[2 * index];
        fetched[piece + term] = Block(low, push.x_quants.value[2 * index + 1], scale, vec2(0.0));
    }
}

void fetch_weights(uint piece, uint output_, uint block) {
    Planes planes = Planes(push.quants, push.high, push.scales);
    fetched[piece] = load_block(planes, block_index(output_, block, push.blocks));
    [[unroll]] for (uint term = 1; term < TERMS; term++) {
        fetched[piece + term] = Block(uvec4(0), uvec4(0), vec2(0.0), vec2(0.0));
    }
}

// sum + scale * byte of bytes 0 and 2 (or, of bytes >> 8, 1 and 3). A byte + 128 is put into the mantissa of 1024, which
// makes a half of it without a conversion.
f16vec2 add_pair(f16vec2 sum, float16_t scale, uint bytes) {
    f16vec2 pair = unpackFloat2x16((bytes ^ 0x00800080u) & 0x00ff00ffu | 0x64006400u) - float16_t(1152.0);
    return fma(pair, f16vec2(scale), sum);
}

void keep_piece(uint piece, uint unit, float factor, bool shifted) {
    [[unroll]] for (uint half_ = 0; half_ < 2; half_++) {
        float16_t scale[TERMS];
        [[unroll]] for (uint term = 0; term < TERMS; term++) {
            scale[term] = float16_t(clamp(fetched[piece + term].scale[half_] * factor, -MOST_SCALE, MOST_SCALE));
        }
        float shift = 0.0;
        if (shifted) {
            shift = -float(OFFSET) * float(scale[0]);
#ifdef HAS_MINIMUM
            shift += fetched[piece].minimum[half_];
#endif
        }
        f16vec2 first = f16vec2(clamp(shift, -MOST_SHIFT, MOST_SHIFT));
        uint words[8];
        [[unroll]] for (uint i = 0; i < 4; i++) {
            f16vec2 even = first;
            f16vec2 odd = first;
            [[unroll]] for (uint term = 0; term < TERMS; term++) {
                uint bytes = half_ == 0 ? fetched[piece + term].low[i] : fetched[piece + term].high[i];
                even = add_pair(even, scale[term], bytes);
                odd = add_pair(odd, scale[term], bytes >> 8);
            }
            words[2 * i] = packFloat2x16(even);
            words[2 * i + 1] = packFloat2x16(odd);
        }
        tile[unit + 2 * half_] = uvec4(words[0], words[1], words[2], words[3]);
        tile[unit + 2 * half_ + 1] = uvec4(words[4], words[5], words[6], words[7]);
    }
}

#endif

void find_largest() {
    uint lane = gl_LocalInvocationID.x;
    for (uint row = lane; row < TILE_ROWS; row += gl_WorkGroupSize.x) {
        largest[row] = 0;
    }
    barrier();
    for (uint i = lane; i < TILE_ROWS * FINDERS; i += gl_WorkGroupSize.x) {
        uint most = floatBitsToUint(largest_within(row_of(i / FINDERS), i % FINDERS));
        atomicMax(largest[i / FINDERS], most, gl_ScopeWorkgroup, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
    }
    barrier();
}

void fetch(uint block) {
    [[unroll]] for (uint i = 0; i < PIECES; i++) {
        uint line = i * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
        if (line < TILE_OUTPUTS) {
            uint last = (push.outputs - 1) / LANES * LANES + line % LANES;
            fetch_weights(i * TERMS, min(gl_WorkGroupID.x * TILE_OUTPUTS + line, last), block);
        } else if (line < LINES) {
            fetch_activations(i * TERMS, row_of(line - TILE_OUTPUTS), block);
        }
    }
}

void keep(uint copy) {
    [[unroll]] for (uint i = 0; i < PIECES; i++) {
        uint line = i * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
        if (line < TILE_OUTPUTS) {
            keep_piece(i * TERMS, tile_unit(copy, line), 1.0, true);
        } else if (line < LINES) {
            float most = largest_of(line - TILE_OUTPUTS);
            keep_piece(i * TERMS, tile_unit(copy, line), most > LEAST ? LARGEST / most : 0.0, false);
        }
    }
}

#endif
