"""A step asks the system for no memory: a library preloaded in front of the C library's counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from backends.count_allocations import THREADS
from levels import levels_of_this_machine
from tierd.backends import library

# numpy's BLAS would have threads too, which ask for memory when they begin, as late as in a step.
ALONE = {"OPENBLAS_NUM_THREADS": "1"}
HERE = Path(__file__).parent
HEADERS = HERE.parent.parent / "hostkernels"


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shim") / "allocations.so"
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-fPIC", "-shared"]
    source = HERE / "allocations.c"
    subprocess.run(["gcc", *flags, f"-I{HEADERS}", str(source), "-o", str(path)], check=True)
    return path


@pytest.mark.parametrize("level", library.LEVELS)
@pytest.mark.parametrize("name", ["Q4_1", "F16"])
def test_a_step_allocates_nothing(level: str, name: str, shim: Path, tmp_path: Path) -> None:
    if level not in levels_of_this_machine():
        pytest.skip(f"not run: this machine has no {level}")
    model = tiny.write_gemma3(tmp_path / "tiny.gguf", format=name, n_embd=96, head_size=32, ff=160)
    answer = subprocess.run(
        [sys.executable, str(HERE / "count_allocations.py"), str(shim), str(model)],
        env=os.environ | ALONE | {"LD_PRELOAD": str(shim), "HOSTKERNELS_LEVEL": level},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    (_, active), (_, created), (_, threads), *steps = (line.split() for line in answer.stdout.splitlines())
    assert active == level
    assert int(threads) == THREADS  # the pool's, and no other's
    assert int(created) > 10  # buffers, tables, pages: the counter counts
    assert steps == [["step", "0"]] * 5
