from __future__ import annotations

import math

import numpy as np
import pytest

from forged import F32, STRING, U32, Key, forge, string
from tierd.errors import ModelFileError, UnsupportedModelError
from tierd.models import GGUFFile
from tierd.models.rope import plain_rope, rope_base, rope_dimensions, scaled_rope

BASE, SIZE, CONTEXT = 10_000.0, 64, 4096
PLAIN = np.array(plain_rope(SIZE, BASE, interleaved=True).frequencies)


@pytest.fixture
def file_with(tmp_path):
    def make(**values):
        keys = [Key("llama.context_length", U32, np.uint32(CONTEXT).tobytes())]
        for name, value in values.items():
            kind, payload = {
                str: lambda value: (STRING, string(value)),
                int: lambda value: (U32, np.uint32(value).tobytes()),
                float: lambda value: (F32, np.float32(value).tobytes()),
            }[type(value)](value)
            keys.append(Key("llama.rope." + name.replace("__", "."), kind, payload))
        (tmp_path / "rope.gguf").write_bytes(forge(keys))
        return GGUFFile.open(tmp_path / "rope.gguf")

    return make


def scaled(file, **arguments):
    return scaled_rope(file, "llama", SIZE, BASE, interleaved=False, **arguments)


def test_plain():
    assert PLAIN[0] == 1.0
    assert PLAIN[16] == pytest.approx(0.01)


def test_no_keys_change_nothing(file_with):
    spec = scaled(file_with())
    assert spec.frequencies == tuple(PLAIN)
    assert spec.magnitude == 1.0
    assert not spec.interleaved


def test_none_ignores_the_factor(file_with):
    assert scaled(file_with(scaling__type="none", scaling__factor=4.0)).frequencies == tuple(PLAIN)


@pytest.mark.parametrize(
    "keys",
    [{"scaling__type": "linear", "scaling__factor": 4.0}, {"scaling__factor": 4.0}, {"scale_linear": 4.0},
     {"scale_linear": 2.0, "scaling__factor": 4.0}],
)  # fmt: skip
def test_linear(file_with, keys):
    assert scaled(file_with(**keys)).frequencies == pytest.approx(tuple(PLAIN / 4))


def test_factors_divide_before_the_scaling(file_with):
    factors = np.linspace(1, 8, SIZE // 2, dtype=np.float32)
    spec = scaled(file_with(scaling__factor=2.0), factors=factors)
    assert spec.frequencies == pytest.approx(tuple(PLAIN / factors / 2))


def test_yarn_keeps_fast_pairs_and_divides_slow_ones(file_with):
    spec = scaled(file_with(scaling__type="yarn", scaling__factor=8.0))
    turns = CONTEXT * PLAIN / (2 * math.pi)
    ratio = np.array(spec.frequencies) / PLAIN
    assert ratio[turns > 45] == pytest.approx(1.0)
    assert ratio[turns < 0.7] == pytest.approx(1 / 8)
    between = ratio[(turns < 20) & (turns > 1.5)]
    assert len(between) > 3
    assert (np.diff(between) < 0).all()
    assert np.diff(between, 2) == pytest.approx(0.0, abs=1e-12)
    assert spec.magnitude == pytest.approx(1 + 0.1 * math.log(8))


def test_yarn_with_keys_of_its_own(file_with):
    keys = {"scaling__type": "yarn", "scaling__factor": 8.0}
    shorter = scaled(file_with(**keys, scaling__original_context_length=1024))
    narrower = scaled(file_with(**keys, scaling__yarn_beta_fast=4.0, scaling__yarn_beta_slow=2.0))
    wide = scaled(file_with(**keys))
    assert np.sum(shorter.frequencies) < np.sum(wide.frequencies)
    kept = [sum(np.isclose(spec.frequencies, PLAIN)) for spec in (narrower, wide)]
    assert kept[0] > kept[1]
    assert scaled(file_with(**keys, scaling__attn_factor=0.5)).magnitude == pytest.approx(wide.magnitude / 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [("scaling__factor", 0.0), ("scaling__factor", float("nan")), ("scaling__attn_factor", 1e9),
     ("scale_linear", -1.0), ("scaling__yarn_beta_fast", 0.0)],
)  # fmt: skip
def test_out_of_range(file_with, key, value):
    name = "llama.rope." + key.replace("__", ".")
    with pytest.raises(ModelFileError, match=f"key {name} is .*outside"):
        scaled(file_with(scaling__type="yarn", **{key: value}))


@pytest.mark.parametrize("kind", ["longrope", "llama3", "dynamic\n"])
def test_unknown_type(file_with, kind):
    with pytest.raises(UnsupportedModelError, match=r"rope\.scaling\.type is .*; none, linear and yarn"):
        scaled(file_with(scaling__type=kind))


@pytest.mark.parametrize(
    ("key", "value"), [("yarn_ext_factor", 0.5), ("yarn_attn_factor", 2.0), ("yarn_log_multiplier", 0.1)]
)
def test_unusual_yarn_is_refused(file_with, key, value):
    with pytest.raises(UnsupportedModelError, match=f"llama.rope.scaling.{key}"):
        scaled(file_with(scaling__type="yarn", **{f"scaling__{key}": value}))


def test_base_and_dimensions(file_with):
    assert rope_base(file_with(), "llama.rope.freq_base") == 10_000.0
    assert rope_base(file_with(freq_base=5e5), "llama.rope.freq_base") == 5e5
    with pytest.raises(ModelFileError, match=r"freq_base is 1\.0, outside"):
        rope_base(file_with(freq_base=1.0), "llama.rope.freq_base")
    assert rope_dimensions(file_with(), "llama", 40) == 40
    assert rope_dimensions(file_with(dimension_count=24), "llama", 40) == 24
    with pytest.raises(ModelFileError, match="dimension_count is 25"):
        rope_dimensions(file_with(dimension_count=25), "llama", 40)
    with pytest.raises(ModelFileError, match="dimension_count is 48, outside 2 to 40"):
        rope_dimensions(file_with(dimension_count=48), "llama", 40)
    with pytest.raises(ModelFileError, match="dimension_count is 41"):
        rope_dimensions(file_with(), "llama", 41)
