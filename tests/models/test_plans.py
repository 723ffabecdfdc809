"""Plans are the models: in numpy they give what the definitions, llama.cpp and the oracle give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiny_variants
from reference import oracle
from reference.forward import forward
from reference.plan_forward import plan_forward
from tierd.models import GGUFFile, build_plan

LLAMA_CPP_LOGITS = Path(__file__).parent.parent / "fixtures" / "tiny_logits.npz"
LLAMA_CPP_POSITIONS = [5, 31, 71]

# llama.cpp looks GELU up in a table of 16-bit floats; all else is float32 on both sides.
LLAMA_CPP_BOUND = {"llama": 1e-4, "gemma3": 1e-2}


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("variants")
    paths: dict[str, Path] = {}

    def write_once(name: str) -> Path:
        if name not in paths:
            paths[name] = tiny_variants.write(name, folder)
        return paths[name]

    return write_once


def planned_logits(path: Path, **arguments) -> np.ndarray:
    with GGUFFile.open(path) as file:
        return plan_forward(build_plan(file), file, tiny_variants.TOKENS, **arguments)


@pytest.mark.parametrize("name", tiny_variants.NAMES)
def test_equals_the_definition(tiny_path, name):
    path = tiny_path(name)
    ours = planned_logits(path, dtype=np.float64)
    theirs = forward(path, tiny_variants.TOKENS, np.float64)
    assert 1.0 < theirs.std() < 4.0
    assert np.abs(ours - theirs).max() < 2e-6
    assert np.abs(planned_logits(path) - theirs).max() < 5e-5


@pytest.mark.parametrize("name", sorted(set(tiny_variants.NAMES) - tiny_variants.REFUSED_BY_LLAMA_CPP))
def test_equals_llama_cpp(tiny_path, name):
    ours = planned_logits(tiny_path(name), rows=LLAMA_CPP_POSITIONS)
    with np.load(LLAMA_CPP_LOGITS) as theirs:
        assert np.abs(ours - theirs[name]).max() < LLAMA_CPP_BOUND[name.split("_")[0]]


@pytest.mark.parametrize(
    ("left", "right"),
    [("llama", "llama_linear"), ("llama_linear", "llama_yarn"), ("llama_yarn", "llama_yarn_tuned"),
     ("llama", "llama_factors"), ("llama", "llama_part_of_head"), ("gemma3", "gemma3_linear"),
     ("gemma3", "gemma3_pattern")],
)  # fmt: skip
def test_variants_differ_in_kind(tmp_path, left, right):
    """With the same weights, so that the tests above cannot pass by ignoring the feature."""
    logits = [planned_logits(tiny_variants.write(name, tmp_path, seed=1)) for name in (left, right)]
    assert np.abs(logits[0] - logits[1]).max() > 0.1


@pytest.mark.parametrize(
    ("model", "name"), [("smollm2_path", oracle.SMOLLM2), ("gemma3_path", oracle.GEMMA3)]
)
def test_equals_the_oracle(request, oracle_dir, model, name):
    text = oracle.load(oracle_dir, name)["float32"]
    with GGUFFile.open(request.getfixturevalue(model)) as file:
        logits = plan_forward(build_plan(file), file, text["tokens"], rows=oracle.positions(text["top20"]))
    assert oracle.mean_kl(text["top20"], logits) < 1e-8
