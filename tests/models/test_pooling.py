from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from tierd.core import Pooling
from tierd.errors import ModelFileError
from tierd.models import GGUFFile
from tierd.models.pooling import read_pooling
from tiny import write_gemma3, write_llama


@pytest.mark.parametrize("kind", gguf.PoolingType)
def test_a_file_says_how(kind: gguf.PoolingType, tmp_path: Path) -> None:
    path = write_gemma3(tmp_path / "m.gguf", extra={"gemma3.pooling_type": int(kind)})
    with GGUFFile.open(path) as file:
        assert read_pooling(file) is Pooling(kind.name.lower())


def test_a_file_may_be_silent(tmp_path: Path) -> None:
    with GGUFFile.open(write_llama(tmp_path / "m.gguf", extra={"gemma3.pooling_type": 1})) as file:
        assert read_pooling(file) is None


@pytest.mark.parametrize("value", [5, 2**31, "mean", 1.0, True])
def test_a_file_that_says_nonsense_is_refused(value: int | str | float, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", extra={"llama.pooling_type": value})
    with GGUFFile.open(path) as file, pytest.raises(ModelFileError, match=r"key llama\.pooling_type"):
        read_pooling(file)
