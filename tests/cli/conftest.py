"""Fixtures of the command line's tests: a daemon to talk to, and one whose device waits for the test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from live import Gate, Gated, Live, serve
from tierd.backends.null import NullBackend
from tierd.settings import ModelSettings
from tiny import write_llama


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSettings:
    path = write_llama(tmp_path_factory.mktemp("cli") / "tiny.gguf", context=256)
    return ModelSettings(id="tiny", path=path, default=True)


@pytest.fixture(scope="module")
def live(model: ModelSettings) -> Iterator[Live]:
    """A daemon of two models, "other" and the default "tiny"."""
    with serve([model, replace(model, id="other", default=False)]) as server:
        yield server


@pytest.fixture
def gated(model: ModelSettings) -> Iterator[Gated]:
    gate = Gate()
    with serve([model], backend=NullBackend(before_step=gate)) as server:
        try:
            yield Gated(server, gate)
        finally:
            gate.open()
