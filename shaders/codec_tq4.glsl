// Keys times a scale of their channel; rotated over the whole head, a power of two of at least 32 values; then by blocks
// value = scale * level[q], q of 4 bits. Byte i of a unit holds values i (low nibble) and i + 16. hostkernels/codecs.c says
// how scales and levels are found; this does the same in the same order.

#extension GL_EXT_control_flow_attributes : require

#define CODEC_SCALED
#define CODEC_ROTATED HEAD_SIZE

const uint CODEC_VALUES = 32;

// The levels of nibbles: 6, 18, 31, 44, 58, 75, 96 and 127 of 8 to 15, the same below 0 of 7 to 0.
vec4 levels_of(uvec4 nibbles) {
    bvec4 above = greaterThanEqual(nibbles, uvec4(8));
    uvec4 k = mix(7 - nibbles, nibbles - 8, above);
    uvec4 words = mix(uvec4(0x2c1f1206u), uvec4(0x7f604b3au), greaterThanEqual(k, uvec4(4)));
    vec4 size = vec4(words >> 8 * (k & 3) & 255);
    return mix(-size, size, above);
}

vec4 levels(uint word) {
    return levels_of(uvec4(word, word >> 8, word >> 16, word >> 24) & 15);
}

vec4 key_quad(uvec4 unit, uint i) {
    return levels(unit[i % 4] >> 4 * (i / 4));
}

uint piece_of(uint quad) {
    return quad / 8 * 4 + quad % 4;
}

vec4 quad_of_piece(uint word, uint quad) {
    return levels(word >> 4 * (quad % 8 / 4));
}

#ifdef CODEC_ENCODES

#define CODEC_PREPARES

const float EDGES[15] = float[](-111.5, -85.5, -66.5, -51.0, -37.5, -24.5, -12.0, 0.0, 12.0, 24.5, 37.5, 51.0, 66.5,
                                85.5, 111.5);
const float FITS[5] = float[](0.75, 0.825, 0.9, 0.975, 1.05);

shared uint block_scales[HEAD_SIZE / 32];
shared uint nibbles[HEAD_SIZE];
shared float squares_of_block[32];

// How many of the edges the values are not below.
uvec4 nibbles_of(vec4 x) {
    uvec4 count = uvec4(0);
    [[unroll]] for (uint i = 0; i < 15; i++) {
        count += uvec4(greaterThanEqual(x, vec4(EDGES[i])));
    }
    return count;
}

float inverse_of(float scale) {
    return scale != 0.0 ? 1.0 / scale : 0.0;
}

// Sum of squared errors of the block's 8 quads from `first` on, at a scale.
float distance_at(uint first, float scale) {
    uint lane = gl_LocalInvocationID.x;
    for (uint quad = lane; quad < 8; quad += LANES) {
        precise vec4 x = heads[first + quad];
        precise vec4 at = x * inverse_of(scale);
        precise vec4 near = scale * levels_of(nibbles_of(at));
        precise vec4 error = x - near;
        precise vec4 square = error * error;
        squares_of_block[quad * 4] = square.x;
        squares_of_block[quad * 4 + 1] = square.y;
        squares_of_block[quad * 4 + 2] = square.z;
        squares_of_block[quad * 4 + 3] = square.w;
    }
    for (uint half_block = 16; half_block > 0; half_block /= 2) {
        barrier();
        for (uint i = lane; i < half_block; i += LANES) {
            precise float pair = squares_of_block[i] + squares_of_block[i + half_block];
            squares_of_block[i] = pair;
        }
    }
    barrier();
    float distance_ = squares_of_block[0];
    barrier();
    return distance_;
}

// The half that comes nearest to the block's 8 quads from `first` on.
uint fitted_scale(uint first) {
    float most = 0.0;
    for (uint quad = 0; quad < 8; quad++) {
        vec4 x = abs(heads[first + quad]);
        most = max(max(max(x.x, x.y), max(x.z, x.w)), most);
    }
    precise float whole = most / 127.0;
    float nearest = uintBitsToFloat(0x7f800000u);
    uint best = 0;
    for (uint i = 0; i < 5; i++) {
        precise float scale = whole * FITS[i];
        uint bits = half_of_float(scale);
        float error = distance_at(first, float_of_half(bits));
        if (error < nearest) {
            nearest = error;
            best = bits;
        }
    }
    return best;
}

// Finds scales and nibbles of the head, from the last block to the first. feedback: rows of HEAD_SIZE, from quad `start`
// on: what each value's error adds to those before it; absent for none. The group meets in it, first and last.
void prepare(FloatQuads feedback, uint start) {
    uint lane = gl_LocalInvocationID.x;
    barrier();
    for (uint block = HEAD_SIZE / 32; block-- > 0;) {
        uint bits = fitted_scale(block * 8);
        float scale = float_of_half(bits);
        float inverse = inverse_of(scale);
        if (lane == 0) {
            block_scales[block] = bits;
        }
        if (is_absent(feedback)) {
            for (uint quad = lane; quad < 8; quad += LANES) {
                precise vec4 at = heads[block * 8 + quad] * inverse;
                uvec4 found = nibbles_of(at);
                uint i = block * 32 + quad * 4;
                nibbles[i] = found.x;
                nibbles[i + 1] = found.y;
                nibbles[i + 2] = found.z;
                nibbles[i + 3] = found.w;
            }
            continue;
        }
        for (uint i = block * 32 + 32; i-- > block * 32;) {
            float x = heads[i / 4][i % 4];
            precise float at = x * inverse;
            uint nibble = nibbles_of(vec4(at)).x;
            precise float near = scale * levels_of(uvec4(nibble)).x;
            precise float error = x - near;
            if (lane == 0) {
                nibbles[i] = nibble;
            }
            barrier();
            for (uint quad = lane; quad * 4 < i; quad += LANES) {
                precise vec4 change = feedback.value[start + i * (HEAD_SIZE / 4) + quad] * error;
                precise vec4 more = heads[quad] + change;
                heads[quad] = more;
            }
            barrier();
        }
    }
    barrier();
}

uint block_scale(uint first) {
    return block_scales[first / 8];
}

uvec4 encode_unit(uint first, uint scale) {
    uvec4 unit;
    for (uint i = 0; i < 4; i++) {
        unit[i] = 0;
        for (uint j = 0; j < 4; j++) {
            uint at = first * 4 + i * 4 + j;
            unit[i] |= (nibbles[at] | nibbles[at + 16] << 4) << 8 * j;
        }
    }
    return unit;
}

#endif
