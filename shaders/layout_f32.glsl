// 32-bit floats. Plane: quants, eight units of four columns. See block.glsl.

Block load_block(Planes planes, uint index) {
    uint first = first_unit(index, 8);
    Block block;
    [[unroll]] for (uint i = 0; i < 8; i++) {
        block.quad[i] = uintBitsToFloat(load_unit(planes.quants, first + i * LANES));
    }
    return block;
}
