"""Fixtures of the HTTP tests: a server for all of them, and one whose device waits for the test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from live import Gate, Gated, Live, serve
from tierd.backends.null import NullBackend
from tierd.settings import ModelSettings
from tiny import write_gemma3, write_llama

CONTEXT = 256


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> ModelSettings:
    path = write_llama(tmp_path_factory.mktemp("http") / "tiny.gguf", context=CONTEXT)
    return ModelSettings(id="tiny", path=path, default=True, streams=16)


@pytest.fixture(scope="session")
def live(tiny_model: ModelSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server of two models; the second one, "plain", has no chat template and begins texts with <bos>."""
    plain = write_gemma3(tmp_path_factory.mktemp("http") / "plain.gguf", context=CONTEXT)
    plain.write_bytes(plain.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.shut_template"))
    with serve([tiny_model, replace(tiny_model, id="plain", path=plain, default=False)]) as server:
        yield server


@pytest.fixture
def gated(tiny_model: ModelSettings) -> Iterator[Gated]:
    gate = Gate()
    with serve([tiny_model], backend=NullBackend(before_step=gate)) as server:
        try:
            yield Gated(server, gate)
        finally:
            gate.open()
