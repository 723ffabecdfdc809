// rails.comp: out (rows, outputs) = x (rows, columns) times weights (outputs, columns), transposed, on a device of
// which nothing optional is asked: 32-bit words in bound buffers. The words are those of rails_layout.c.
//
// A group computes a tile of 64 rows by 64 outputs, a block of 32 columns at a time, through shared memory; a lane
// has 8 rows and 4 outputs of it. Bytes are scaled on the way to shared memory, so that formats differ there only.
#version 460
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = 128) in;

layout(set = 0, binding = 0) readonly buffer Activations { uvec4 x[]; };
layout(set = 0, binding = 1) readonly buffer Weights { uvec4 weights[]; };
layout(set = 0, binding = 2) writeonly buffer Products { float products[]; };

// The first unit of the activations holds their rows, so that commands are recorded once for any number of them.
// values, scales: where the weight begins, in units of four words. parts: scales of a block of it. before: outputs of
// the matmuls whose products come before these.
layout(push_constant) uniform Push {
    uint outputs;
    uint before;
    uint blocks;
    uint values;
    uint scales;
    uint parts;
};

const uint HEAD = 1;

const uint TILE = 64, BLOCK = 32;
const uint ROWS = 8, OUTPUTS = 4;

shared vec4 x_tile[BLOCK * TILE / 4];
shared vec4 w_tile[BLOCK * TILE / 4];

float word(uint index, bool of_x)
{
    const uvec4 unit = of_x ? x[index / 4] : weights[index / 4];
    return uintBitsToFloat(unit[index % 4]);
}

#ifdef FLOATS

// 32 floats of each row: a lane fetches four units of four.
void load_tiles(uint rows, uint row, uint group, uint block)
{
    [[unroll]] for (uint i = 0; i < 4; i++) {
        const uint unit = i * gl_WorkGroupSize.x + gl_LocalInvocationID.x, line = unit / 8, column = unit % 8 * 4;
        const vec4 w = uintBitsToFloat(weights[values + (group * blocks + block) * TILE * 8 + unit]);
        vec4 a = vec4(0.0);
        if (row + line < rows)
            a = uintBitsToFloat(x[HEAD + ((row + line) * blocks + block) * 8 + unit % 8]);
        [[unroll]] for (uint c = 0; c < 4; c++) {
            const uint to = (column + c) * TILE + line;
            w_tile[to / 4][to % 4] = w[c];
            x_tile[to / 4][to % 4] = a[c];
        }
    }
}

#else

// 32 bytes of each row: a lane fetches a unit of 16.
void load_tiles(uint rows, uint row, uint group, uint block)
{
    const uint unit = gl_LocalInvocationID.x, line = unit / 2, part = unit % 2;
    const uint at = (group * blocks + block) * TILE + line;
    const uvec4 w = weights[values + at * 2 + part];
    const uint pair = scales * 4 + (at * parts + part * (parts - 1)) * 2;
    const float scale = word(pair, false), least = word(pair + 1, false);
    uvec4 a = uvec4(0);
    float x_scale = 0.0;
    if (row + line < rows) {
        const uint place = (row + line) * blocks + block;
        a = x[HEAD + place * 2 + part];
        x_scale = word((HEAD + rows * blocks * 2) * 4 + place, true);
    }
    [[unroll]] for (uint c = 0; c < 16; c++) {
        const int shift = int(c % 4) * 8;
        const uint to = (part * 16 + c) * TILE + line;
        w_tile[to / 4][to % 4] = scale * float(bitfieldExtract(int(w[c / 4]), shift, 8)) + least;
        x_tile[to / 4][to % 4] = x_scale * float(bitfieldExtract(int(a[c / 4]), shift, 8));
    }
}

#endif

void main()
{
    const uint rows = x[0].x;
    const uint group = gl_WorkGroupID.x, row = gl_WorkGroupID.y * TILE;
    if (group * TILE >= outputs || row >= rows)
        return;
    const uint first_row = gl_LocalInvocationID.x / 16 * ROWS, first_output = gl_LocalInvocationID.x % 16 * OUTPUTS;
    vec4 sums[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        sums[r] = vec4(0.0);
    for (uint block = 0; block < blocks; block++) {
        load_tiles(rows, row, group, block);
        barrier();
        for (uint k = 0; k < BLOCK; k++) {
            const vec4 w = w_tile[(k * TILE + first_output) / 4];
            const vec4 low = x_tile[(k * TILE + first_row) / 4], high = x_tile[(k * TILE + first_row) / 4 + 1];
            [[unroll]] for (uint r = 0; r < 4; r++) {
                sums[r] += low[r] * w;
                sums[r + 4] += high[r] * w;
            }
        }
        barrier();
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        [[unroll]] for (uint o = 0; o < OUTPUTS; o++) {
            const uint x_row = row + first_row + r, output_ = group * TILE + first_output + o;
            if (x_row < rows && output_ < outputs)
                products[before * rows + x_row * outputs + output_] = sums[r][o];
        }
}
