// 5 bits less 16, scale of a block. Planes: quants, high, scales. See block.glsl.

#define HAS_MINIMUM

Block load_block(Planes planes, uint index) {
    uvec4 unit = load_unit(planes.quants, index);
    uint bits = Words(planes.high).value[index];
    float scale = float_of_half(uint(Halves(planes.scales).value[index]));
    return Block(
        nibbles_low(unit) | spread_bits(bits) << 4,
        nibbles_high(unit) | spread_bits(bits >> 16) << 4,
        vec2(scale),
        vec2(-16.0 * scale)
    );
}
