// Unsigned 5 bits, scale and minimum of a block. Planes: quants, high, scales. See block.glsl.

#define HAS_MINIMUM

Block load_block(Planes planes, uint index) {
    uvec4 unit = load_unit(planes.quants, index);
    uint bits = Words(planes.high).value[index];
    vec2 scale = unpackHalf2x16(Words(planes.scales).value[index]);
    return Block(
        nibbles_low(unit) | spread_bits(bits) << 4,
        nibbles_high(unit) | spread_bits(bits >> 16) << 4,
        scale.xx,
        scale.yy
    );
}
