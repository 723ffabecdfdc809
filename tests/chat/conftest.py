"""The real models' tokenizers, built once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tierd.chat.tokenizer import Tokenizer, build_tokenizer
from tierd.models.gguf import GGUFFile


@pytest.fixture(scope="session")
def files(smollm2_path: Path, gemma3_path: Path) -> Iterator[dict[str, GGUFFile]]:
    """The real models' files, open."""
    with GGUFFile.open(smollm2_path) as smollm2, GGUFFile.open(gemma3_path) as gemma3:
        yield {"smollm2": smollm2, "gemma3": gemma3}


@pytest.fixture(scope="session")
def tokenizers(files: dict[str, GGUFFile]) -> dict[str, Tokenizer]:
    """The real models' tokenizers."""
    return {name: build_tokenizer(file) for name, file in files.items()}
