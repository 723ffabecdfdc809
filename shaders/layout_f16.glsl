// 16-bit floats. Plane: quants, four units of eight columns. See block.glsl.

Block load_block(Planes planes, uint index) {
    uint first = first_unit(index, 4);
    Block block;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uvec4 unit = load_unit(planes.quants, first + i * LANES);
        block.quad[2 * i] = vec4(unpackHalf2x16(unit.x), unpackHalf2x16(unit.y));
        block.quad[2 * i + 1] = vec4(unpackHalf2x16(unit.z), unpackHalf2x16(unit.w));
    }
    return block;
}
