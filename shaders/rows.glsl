// Rows of floats, four consecutive ones ("a quad") to a lane. A row's width is rounded up to 32 in memory, its stride is
// a multiple of 4; what lies past the width may be anything. Include this behind the entry's `layout(local_size_x)`.

#ifndef ROWS_GLSL
#define ROWS_GLSL

#include "buffers.glsl"
#include "quantise.glsl"

// The quad without what lies past the row's width.
vec4 within(vec4 x, uint quad, uint width) {
    return mix(vec4(0.0), x, lessThan(uvec4(0, 1, 2, 3) + quad * 4, uvec4(width)));
}

// A quad of a row whose first one is `start`; zeros past the width, where nothing is read.
vec4 quad_of(FloatQuads rows, uint start, uint quad, uint width) {
    return quad * 4 < width ? within(rows.value[start + quad], quad, width) : vec4(0.0);
}

// Write a row as the sum of `terms` quantised rows: x quantised, then what that leaves of it, quantised. Row r's first
// is quantised row r * terms.
// Every lane of the group must call it; its lanes hold neighbouring quads, the first one's number is a multiple of 8.
void write_terms(
    vec4 x, uint row, uint terms, uint quad, uint width, MutableWords quants, MutableWordPairs scales
) {
    uint blocks = (width + 31) / 32;
    for (uint term = 0; term < terms; term++) {
        uvec2 scale;
        uint bytes = quantise(x, scale);
        uint first = (row * terms + term) * blocks;
        if (quad < blocks * QUANTISE_LANES) {
            quants.value[first * QUANTISE_LANES + quad] = bytes;
            if (quad % QUANTISE_LANES == 0) {
                scales.value[first + quad / QUANTISE_LANES] = scale;
            }
        }
        x = rest_of(x, bytes, scale);
    }
}

// As write_terms of one.
void write_quantised(vec4 x, uint row, uint quad, uint width, MutableWords quants, MutableWordPairs scales) {
    write_terms(x, row, 1, quad, width, quants, scales);
}

#endif
