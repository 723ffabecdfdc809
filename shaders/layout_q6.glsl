// 6 bits less 32, a scale for each 16 columns. Planes: quants, high, scales. See block.glsl.

#define SCALED_BY_HALVES
#define OFFSET 32

Block load_block(Planes planes, uint index) {
    uvec4 unit = load_unit(planes.quants, index);
    uvec2 pairs = load_pair(WordPairs(planes.high), index);
    return Block(
        nibbles_low(unit) | spread_pairs(pairs.x) << 4,
        nibbles_high(unit) | spread_pairs(pairs.y) << 4,
        unpackHalf2x16(Words(planes.scales).value[index]),
        vec2(0.0)
    );
}
