from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tierd.backends.resident import manifest
from tierd.errors import TierdError

SPIRV_MAGIC = 0x07230203


def written(folder: Path, **changes: object) -> Path:
    row = {
        "push": [["source", "address"], ["count", "uint"], ["shift", "int"], ["scale", "float"]],
        "constants": {"ROWS": 2},
        "variants": {"plain": "probe.plain.spv"},
    }
    content = {"version": 1, "kernels": {"probe": row}, **changes}
    (folder / "manifest.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def probe(tmp_path: Path) -> manifest.Kernel:
    return manifest.load(written(tmp_path))["probe"]


def test_installed_kernels_have_all_their_modules() -> None:
    kernels = manifest.load(manifest.folder())
    assert "add" in kernels
    for kernel in kernels.values():
        assert kernel.variants
        for variant in kernel.variants:
            assert struct.unpack_from("<I", manifest.spirv(kernel, variant)) == (SPIRV_MAGIC,)


def test_a_kernel_says_what_its_pipelines_are_made_with() -> None:
    add = manifest.kernel("add")
    assert [name for name, _ in add.push] == ["a", "b", "out", "width", "a_stride", "b_stride", "out_stride"]
    assert add.push_bytes == 3 * 8 + 4 * 4
    assert list(add.variants) == ["plain"]


def test_an_unknown_kernel_is_an_error_of_one_line() -> None:
    with pytest.raises(TierdError, match=r"^there is no shader kernel 'subtract' in .*; reinstall tierd$"):
        manifest.kernel("subtract")


def test_an_unknown_variant_is_an_error_that_names_those_there_are(probe: manifest.Kernel) -> None:
    with pytest.raises(TierdError, match=r"^shader kernel probe has no variant 'q4', only plain; reinstall"):
        manifest.spirv(probe, "q4")


def test_a_missing_module_is_an_error_that_names_it(probe: manifest.Kernel) -> None:
    with pytest.raises(TierdError, match=r"^shader .*probe\.plain\.spv cannot be read"):
        manifest.spirv(probe, "plain")


def test_a_missing_manifest_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        TierdError, match=r"^the shaders' manifest at .*manifest\.json cannot be read .*reinstall"
    ):
        manifest.load(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 1}', '{"version": 1, "kernels": {"add": {}}}'])
def test_a_damaged_manifest_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(TierdError, match="cannot be read"):
        manifest.load(tmp_path)


def test_a_manifest_of_another_version_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TierdError, match="has version 2, 1 is needed"):
        manifest.load(written(tmp_path, version=2))


def test_packs_the_push_struct_in_the_tables_order(probe: manifest.Kernel) -> None:
    packed = manifest.pack(probe, scale=0.5, shift=-3, count=7, source=0x1122334455667788)
    assert packed == struct.pack("<QIif", 0x1122334455667788, 7, -3, 0.5)
    assert len(packed) == probe.push_bytes


def test_refuses_to_pack_what_is_unknown_or_missing(probe: manifest.Kernel) -> None:
    with pytest.raises(TypeError, match=r"probe: push field 'scale' is missing"):
        manifest.pack(probe, source=0, count=1, shift=0)
    with pytest.raises(TypeError, match=r"probe has no push field 'sacle'"):
        manifest.pack(probe, source=0, count=1, shift=0, scale=1.0, sacle=1.0)


@pytest.mark.parametrize(
    "wrong", [{"count": -1}, {"count": 1 << 32}, {"source": 1 << 64}, {"count": 1.5}, {"scale": 1e39}]
)
def test_refuses_to_pack_what_does_not_fit(probe: manifest.Kernel, wrong: dict[str, float]) -> None:
    fields: dict[str, float] = {"source": 0, "count": 1, "shift": 0, "scale": 1.0, **wrong}
    ((name, value),) = wrong.items()
    with pytest.raises(
        ValueError, match=rf"probe: a push field does not fit .*{name} = {value!r}".replace("+", r"\+")
    ):
        manifest.pack(probe, **fields)
