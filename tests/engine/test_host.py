"""The engine on the real host backend: a stream is the same, whoever else is served, however it is cut."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from engine.harness import model, running
from engine.null_slot import request
from tierd.backends.host import HostBackend
from tierd.core import FinishedEvent, Request
from tierd.settings import EngineSettings, KVSettings, Settings
from tierd.slot import open_slot
from tierd.tier.host_site import HostSite
from tiny import write_llama

REQUESTS = [
    request(
        f"r{i}", [1 + (7 * i + j * j) % 300 for j in range(5 + 13 * i)], 40, model="tiny", temperature=i % 2
    )
    for i in range(8)
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("host") / "tiny.gguf"
    return write_llama(path, format="Q8_0", n_embd=96, head_size=32, ff=160)


def answers(path: Path, requests: list[Request], *, threads: int, chunk_rows: int) -> list[str]:
    """Serve the requests, all at once or one by one, and return their texts."""
    settings = Settings(engine=EngineSettings(chunk_rows=chunk_rows), kv=KVSettings(memory_mb=64))
    backend = HostBackend(threads)
    try:
        opener = partial(open_slot, settings=settings, site=HostSite(backend))
        with running(model("tiny", path=path), open_slot=opener) as harness:
            for r in requests:
                harness.engine.submit(r)
            for r in requests:
                assert isinstance(harness.mail.terminal(r.id), FinishedEvent)
            assert harness.rests()
            return [harness.mail.text(r.id) for r in requests]
    finally:
        backend.close()


def test_company_threads_and_chunks_change_nothing(tiny: Path) -> None:
    alone = [answers(tiny, [r], threads=1, chunk_rows=256)[0] for r in REQUESTS]
    assert len(set(alone)) == len(alone)
    for threads, chunk_rows in ((2, 7), (1, 64)):
        assert answers(tiny, REQUESTS, threads=threads, chunk_rows=chunk_rows) == alone
