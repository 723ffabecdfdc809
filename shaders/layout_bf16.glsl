// The upper 16 bits of 32-bit floats. Plane: quants, four units of eight columns. See block.glsl.

vec4 floats_of_bfloats(uvec2 words) {
    return uintBitsToFloat(uvec4(words.x << 16, words.x & 0xffff0000u, words.y << 16, words.y & 0xffff0000u));
}

Block load_block(Planes planes, uint index) {
    uint first = first_unit(index, 4);
    Block block;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        uvec4 unit = load_unit(planes.quants, first + i * LANES);
        block.quad[2 * i] = floats_of_bfloats(unit.xy);
        block.quad[2 * i + 1] = floats_of_bfloats(unit.zw);
    }
    return block;
}
