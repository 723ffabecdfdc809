// Unsigned 2 bits, a scale and a minimum for each 16 columns. Plane: quants, a unit: two words of pairs, scales,
// minima. See block.glsl.

#define SCALED_BY_HALVES
#define HAS_MINIMUM

Block load_block(Planes planes, uint index) {
    uvec4 unit = load_unit(planes.quants, index);
    return Block(spread_pairs(unit.x), spread_pairs(unit.y), unpackHalf2x16(unit.z), unpackHalf2x16(unit.w));
}
