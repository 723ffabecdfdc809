from __future__ import annotations

from pathlib import Path

import pytest

from shader_table import TableError, read_table

ADD = """
[kernel.add]
file = "add.comp"
push = [["source", "address"], ["width", "uint"], ["scale", "float"]]
"""


def table(folder: Path, text: str) -> Path:
    (folder / "add.comp").write_text("#version 460\n")
    path = folder / "variants.toml"
    path.write_text(text)
    return path


def test_a_kernel_without_variants_has_one_called_plain(tmp_path: Path) -> None:
    (kernel,) = read_table(table(tmp_path, ADD))
    assert kernel.push == (("source", "address"), ("width", "uint"), ("scale", "float"))
    assert [(variant.module, variant.defines) for variant in kernel.variants] == [("add.plain.spv", ())]


def test_variants_are_named_or_products_of_axes(tmp_path: Path) -> None:
    text = """
    variants = [{ name = "f16", defines = ["LAYOUT_F16"] }, { each = ["layout", "dot"] }]
    constants = { ROWS = 0 }
    [axis.layout]
    q8 = ["LAYOUT_Q8"]
    q4 = ["LAYOUT_Q4"]
    [axis.dot]
    dot = ["INTEGER_DOT"]
    nodot = []
    """
    (kernel,) = read_table(table(tmp_path, ADD + text))
    assert {variant.module: variant.defines for variant in kernel.variants} == {
        "add.f16.spv": ("LAYOUT_F16",),
        "add.q8.dot.spv": ("LAYOUT_Q8", "INTEGER_DOT"),
        "add.q8.nodot.spv": ("LAYOUT_Q8",),
        "add.q4.dot.spv": ("LAYOUT_Q4", "INTEGER_DOT"),
        "add.q4.nodot.spv": ("LAYOUT_Q4",),
    }
    assert kernel.constants == {"ROWS": 0}


ADDRESSES = ", ".join(f'["a{number}", "address"]' for number in range(16))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[kernel.add", "variants.toml: "),
        ("[kernels.add]", "variants.toml: unknown field 'kernels'; known are axis, kernel"),
        (ADD + 'grid = "rows"', "kernel add: unknown field 'grid'"),
        (ADD.replace("kernel.add", "kernel.Add"), "kernel Add: name 'Add' does not look like"),
        (ADD.replace("add.comp", "sub.comp"), "kernel add: there is no file sub.comp beside variants.toml"),
        (ADD.replace("add.comp", "add.glsl"), "kernel add: file is 'add.glsl', not the name of a .comp"),
        ('[kernel.add]\nfile = "add.comp"', "kernel add: push is not a list of fields"),
        (
            ADD.replace('"float"', '"double"'),
            "kernel add: push field ['scale', 'double'] is not [name, address",
        ),
        (ADD.replace('"scale"', '"width"'), "kernel add: a push field is named twice"),
        (
            ADD.replace('"address"', '"uint"').replace('"float"', '"address"'),
            "kernel add: a push address stands behind a 32-bit field",
        ),
        (
            f'[kernel.add]\nfile = "add.comp"\npush = [{ADDRESSES}, ["width", "uint"]]',
            "kernel add: push takes 132 bytes; 128 are possible",
        ),
        (ADD + "constants = { ROWS = -1 }", "kernel add: constants is not a table of NAME = constant_id"),
        (ADD + "constants = { ROWS = 1, TILE = 1 }", "kernel add: a constant_id is given twice"),
        (ADD + "variants = []", "kernel add: variants is not a list"),
        (ADD + 'variants = [{ name = "q4" }]', "kernel add: variant {'name': 'q4'} is neither"),
        (ADD + 'variants = [{ each = ["layout"] }]', "kernel add: there is no axis 'layout'"),
        (
            ADD + 'variants = [{ name = "q4", defines = ["Q4; rm"] }]',
            "kernel add: define 'Q4; rm' does not look",
        ),
        (
            ADD + 'variants = [{ name = "q4", defines = [] }, { name = "q4", defines = ["Q4"] }]',
            "kernel add: variant q4 is given twice",
        ),
        (ADD + "[axis.layout]", "axis layout: not a table of value = [defines]"),
        (ADD + "[axis.layout]\nq4 = 4", "axis layout: defines 4 is not a list"),
        (ADD + '[axis.layout]\nq4 = ["Q4"]', "axis layout: no kernel is varied by it"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TableError) as refused:
        read_table(table(tmp_path, text))
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_push_constants_may_fill_all_128_bytes(tmp_path: Path) -> None:
    text = f'[kernel.add]\nfile = "add.comp"\npush = [{ADDRESSES}]'
    (kernel,) = read_table(table(tmp_path, text))
    assert len(kernel.push) == 16
