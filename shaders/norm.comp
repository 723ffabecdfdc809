#version 460
#extension GL_GOOGLE_include_directive : require
#include "buffers.glsl"

// What stands between two matmuls, row by row: v = src; POST: v = rms_norm(v) * post_weight; ADD: v = residual + v;
// POST or ADD: sum_out = v; NORM: y = rms_norm(v) * weight, else y = v; y goes out as floats, in TERMS quantised terms,
// or both.
// sum_out may be src or residual. Groups: (1, rows).
//
// rms_norm(v) = v / sqrt(mean(v^2) + eps) (Zhang and Sennrich, 2019). Its sum of squares: element i to partial sum
// (i / 4) % 256, in ascending order; the partial sums as group_sum has it.

layout(local_size_x = 256) in;

#include "rows.glsl"
#include "group_sum.glsl"

layout(constant_id = 0) const bool POST = false;
layout(constant_id = 1) const bool ADD = false;
layout(constant_id = 2) const bool NORM = true;
layout(constant_id = 3) const bool OUT_FLOAT = false;
layout(constant_id = 4) const uint TERMS = 1;

layout(push_constant) uniform Push {
    MutableFloatQuads src;
    FloatQuads post_weight;
    MutableFloatQuads residual;
    MutableFloatQuads sum_out;
    FloatQuads weight;
    MutableFloatQuads out_;
    MutableWords quants;
    MutableWordPairs scales;
    uint width;
    uint src_stride;
    uint residual_stride;
    uint sum_stride;
    uint out_stride;
    float post_eps;
    float eps;
} push;

// As quad_of, of rows that may be written as well.
vec4 quad_at(MutableFloatQuads rows, uint start, uint quad) {
    return quad * 4 < push.width ? within(rows.value[start + quad], quad, push.width) : vec4(0.0);
}

// Squares are added to the partial sum one by one.
float add_squares(float partial, vec4 x) {
    precise vec4 square = x * x;
    precise float sum = partial + square.x;
    sum += square.y;
    sum += square.z;
    sum += square.w;
    return sum;
}

float scale_of(float squares, float eps) {
    precise float mean = squares / float(push.width);
    precise float scale = 1.0 / sqrt(mean + eps);
    return scale;
}

void main() {
    uint row = gl_WorkGroupID.y;
    uint lane = gl_LocalInvocationID.x;
    uint quads = (push.width + 31) / 32 * QUANTISE_LANES;
    uint src = row * push.src_stride / 4;
    uint residual = row * push.residual_stride / 4;
    uint sum_out = row * push.sum_stride / 4;

    float post_scale = 1.0;
    if (POST) {
        float squares = 0.0;
        for (uint quad = lane; quad < quads; quad += 256) {
            squares = add_squares(squares, quad_at(push.src, src, quad));
        }
        post_scale = scale_of(group_sum(squares), push.post_eps);
    }

    float scale = 1.0;
    if (NORM || POST || ADD) {
        float squares = 0.0;
        for (uint quad = lane; quad < quads; quad += 256) {
            precise vec4 v = quad_at(push.src, src, quad);
            if (POST) {
                v = v * post_scale * quad_of(push.post_weight, 0, quad, push.width);
            }
            if (ADD) {
                v = quad_at(push.residual, residual, quad) + v;
            }
            if ((POST || ADD) && quad * 4 < push.width) {
                push.sum_out.value[sum_out + quad] = v;
            }
            squares = add_squares(squares, v);
        }
        if (NORM) {
            scale = scale_of(group_sum(squares), push.eps);
        }
    }

    for (uint first = 0; (OUT_FLOAT || TERMS > 0) && first < quads; first += 256) {
        uint quad = first + lane;
        precise vec4 y = POST || ADD ? quad_at(push.sum_out, sum_out, quad) : quad_at(push.src, src, quad);
        if (NORM) {
            y = y * scale * quad_of(push.weight, 0, quad, push.width);
        }
        if (OUT_FLOAT && quad * 4 < push.width) {
            push.out_.value[row * push.out_stride / 4 + quad] = y;
        }
        if (TERMS > 0) {
            write_terms(y, row, TERMS, quad, push.width, push.quants, push.scales);
        }
    }
}
