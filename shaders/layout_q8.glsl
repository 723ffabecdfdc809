// Signed 8 bits, scale of a block. Planes: quants, two units of 16 columns; scales. See block.glsl.

Block load_block(Planes planes, uint index) {
    uint first = first_unit(index, 2);
    float scale = float_of_half(uint(Halves(planes.scales).value[index]));
    return Block(load_unit(planes.quants, first), load_unit(planes.quants, first + LANES), vec2(scale), vec2(0.0));
}
