// What a block of weights and a block of activations add to a sum, in the one numeric definition:
//     quantised   x_scale * (scale * float(dot) + minimum * float(x_sum)), the dot product an exact integer; where a
//                 layout scales by halves, the sum of two such halves inside the parenthesis
//     float       32 products, added to the sum one after the other
// A row's blocks are cut into SEGMENTS contiguous segments, segment s from block s * blocks / SEGMENTS on; blocks are
// added left to right inside a segment, then the segments' sums. Activations may be a sum of quantised terms: a block of
// weights is added with the block of the first, then with that of the second.

#ifndef PRODUCT_GLSL
#define PRODUCT_GLSL

#include "block.glsl"

const uint SEGMENTS = 8;

// Walking blocks from the start of a segment, empty segments left out: `progress` counts parts of a segment, `blocks` to
// a segment and SEGMENTS to a block.
const uint FIRST_PROGRESS = SEGMENTS - 1;

// Whether the block that has just been added is the last of its segment; to be called after each.
bool ends_segment(inout uint progress, uint blocks) {
    progress += SEGMENTS;
    bool ends = progress >= blocks;
    progress -= ends ? blocks : 0;
    return ends;
}

#ifdef FLOAT_WEIGHTS

#define Weights Block
#define Activations Block

Weights load_weights(Planes planes, uint index) {
    return load_block(planes, index);
}

float add_block(float sum, Weights weights, Activations x) {
    precise float added = sum;
    [[unroll]] for (uint i = 0; i < 8; i++) {
        precise vec4 products = weights.quad[i] * x.quad[i];
        added += products.x;
        added += products.y;
        added += products.z;
        added += products.w;
    }
    return added;
}

#else

#include "dot.glsl"

struct Weights {
    Quad quad[8];
    vec2 scale;
    vec2 minimum;
};

struct Activations {
    Quad quad[8];
    float scale;
    ivec2 sum;  // of the first and the last 16 bytes
};

Weights load_weights(Planes planes, uint index) {
    Block block = load_block(planes, index);
    Weights weights;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        weights.quad[i] = quad_of(block.low[i]);
        weights.quad[4 + i] = quad_of(block.high[i]);
    }
    weights.scale = block.scale;
    weights.minimum = block.minimum;
    return weights;
}

float scaled(float scale, float minimum, float dot, int sum) {
    precise float term = scale * (dot - float(OFFSET * sum));
#ifdef HAS_MINIMUM
    precise float shift = minimum * float(sum);
    term += shift;
#endif
    return term;
}

float add_block(float sum, Weights weights, Activations x) {
    Dot low = Dot(0);
    Dot high = Dot(0);
    [[unroll]] for (uint i = 0; i < 4; i++) {
        low = add_dot(low, weights.quad[i], x.quad[i]);
        high = add_dot(high, weights.quad[4 + i], x.quad[4 + i]);
    }
#ifdef SCALED_BY_HALVES
    precise float term = scaled(weights.scale.x, weights.minimum.x, float(low), x.sum.x);
    term += scaled(weights.scale.y, weights.minimum.y, float(high), x.sum.y);
#else
    precise float term = scaled(weights.scale.x, weights.minimum.x, float(low + high), x.sum.x + x.sum.y);
#endif
    precise float product = x.scale * term;
    precise float added = sum + product;
    return added;
}

#endif
#endif
