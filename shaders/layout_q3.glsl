// 3 bits less 4, a scale for each 16 columns. Plane: quants, a unit: two words of pairs, one of third bits, scales.
// See block.glsl.

#define SCALED_BY_HALVES
#define OFFSET 4

Block load_block(Planes planes, uint index) {
    uvec4 unit = load_unit(planes.quants, index);
    return Block(
        spread_pairs(unit.x) | spread_bits(unit.z) << 2,
        spread_pairs(unit.y) | spread_bits(unit.z >> 16) << 2,
        unpackHalf2x16(unit.w),
        vec2(0.0)
    );
}
