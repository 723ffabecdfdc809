from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tier.tiers import TierOf, build
from tiny import write_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 32 values, so that every codec fits."""
    return write_llama(tmp_path_factory.mktemp("tier") / "tiny.gguf", head_size=32, context=4096)


@pytest.fixture
def tier_of() -> Iterator[TierOf]:
    """Builds tiers of models, with settings of [gpu]; see `tiers.build`."""
    with ExitStack() as stack:
        yield partial(build, stack)
