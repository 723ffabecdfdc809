// Unsigned 4 bits, scale and minimum of a block. Planes: quants, scales. See block.glsl.

#define HAS_MINIMUM

Block load_block(Planes planes, uint index) {
    uvec4 unit = load_unit(planes.quants, index);
    vec2 scale = unpackHalf2x16(Words(planes.scales).value[index]);
    return Block(nibbles_low(unit), nibbles_high(unit), scale.xx, scale.yy);
}
