// 4 bits less 8, scale of a block. Planes: quants, scales. See block.glsl.

#define HAS_MINIMUM

Block load_block(Planes planes, uint index) {
    uvec4 unit = load_unit(planes.quants, index);
    float scale = float_of_half(uint(Halves(planes.scales).value[index]));
    return Block(nibbles_low(unit), nibbles_high(unit), vec2(scale), vec2(-8.0 * scale));
}
