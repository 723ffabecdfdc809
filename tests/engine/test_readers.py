"""A stream runs ahead of its reader by so many texts, then pauses; nobody else is held up."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from engine.harness import NULL, Gate, Harness, model, running
from engine.null_slot import request
from tierd.backends.host import HostBackend
from tierd.core import Batch, FailedEvent, FinishedEvent, TextEvent
from tierd.engine.readers import Readers
from tierd.errors import SlowReaderError
from tierd.settings import KVSettings, ServerSettings, Settings
from tierd.slot import open_slot
from tierd.tier.host_site import HostSite
from tiny import write_llama

# Texts that are whole characters, one for each token.
LETTERS = 8


def settings(backlog: int, timeout_s: float = 600.0) -> Settings:
    return Settings(server=ServerSettings(reader_backlog=backlog, reader_timeout_s=timeout_s))


def texts(harness: Harness, request_id: str) -> int:
    return sum(isinstance(event, TextEvent) for event in harness.mail.events(request_id))


def test_a_stream_pauses_after_its_backlog_and_goes_on_when_it_is_read() -> None:
    rows: list[int] = []
    with running(
        NULL, settings=settings(LETTERS), before_step=lambda b: rows.append(len(b.chunks))
    ) as harness:
        harness.engine.submit(request("slow", max_tokens=200))
        state = harness.snapshot_when(lambda s: s.models["null"].paused == 1).models["null"]
        assert (state.running, texts(harness, "slow")) == (1, LETTERS)
        used = state.pages_used
        harness.engine.submit(request("other", max_tokens=5))
        harness.mail.terminal("other")
        assert (texts(harness, "slow"), harness.engine.snapshot.models["null"].pages_used) == (LETTERS, used)
        assert rows[-5:] == [1] * 5
        harness.engine.taken("slow", 3)
        harness.mail.wait(lambda: texts(harness, "slow") == LETTERS + 3)
        harness.snapshot_when(lambda s: s.models["null"].paused == 1)
        assert texts(harness, "slow") == LETTERS + 3
        harness.engine.taken("slow", 10**6)
        assert isinstance(harness.mail.terminal("slow"), FinishedEvent)
        assert harness.metrics.registry.get_sample_value("tierd_stream_pauses_total", {"model": "null"}) == 2
        harness.engine.taken("slow", 1)
        harness.engine.taken("nobody", 1)
        harness.snapshot_when(lambda _: harness.rests())


def test_a_reader_that_never_comes_back_ends_its_stream(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tierd")
    with running(NULL, settings=settings(4, 0.1)) as harness:
        harness.engine.submit(request("slow", max_tokens=200))
        event = harness.mail.terminal("slow")
        assert isinstance(event, FailedEvent)
        assert isinstance(event.error, SlowReaderError)
        assert str(event.error) == "the stream waited 0.1 s for its client to read on"
        assert texts(harness, "slow") == 4
        harness.snapshot_when(lambda _: harness.rests())
        value = harness.metrics.registry.get_sample_value(
            "tierd_requests_total", {"model": "null", "outcome": "slow_reader"}
        )
        assert value == 1
    assert "request=slow" in caplog.text
    assert "outcome=slow_reader" in caplog.text


def test_a_paused_stream_can_be_cancelled() -> None:
    with running(NULL, settings=settings(2)) as harness:
        harness.engine.submit(request("slow", max_tokens=200))
        harness.snapshot_when(lambda s: s.models["null"].paused == 1)
        harness.engine.cancel("slow")
        assert isinstance(harness.mail.terminal("slow"), FinishedEvent)
        harness.snapshot_when(lambda _: harness.rests())
        assert harness.engine.snapshot.models["null"].paused == 0


def test_a_pause_in_a_running_step_is_no_surprise() -> None:
    gate = Gate()
    chunks: list[int] = []

    def step(batch: Batch) -> None:
        chunks.append(len(batch.chunks))
        gate(batch)

    with running(NULL, settings=settings(1), before_step=step) as harness:
        harness.engine.submit(request("a", b"12", max_tokens=3))
        gate.wait()
        harness.engine.submit(request("b", b"34", max_tokens=3))
        harness.snapshot_when(lambda s: s.models["null"].waiting == 1)
        gate.let(99)
        harness.snapshot_when(lambda s: s.models["null"].paused == 2)
        for name in "ab":
            harness.engine.taken(name, 3)
        for name in "ab":
            assert isinstance(harness.mail.terminal(name), FinishedEvent)
    assert chunks[:2] == [1, 1]


def test_the_time_limit_begins_anew_with_each_pause() -> None:
    readers = Readers(ServerSettings(reader_backlog=2, reader_timeout_s=5))
    with running(NULL):
        pass
    first, second = (_sequence(name) for name in "ab")
    assert [readers.send(first, 0.0), readers.send(first, 1.0)] == [False, True]
    assert [readers.send(second, 2.0), readers.send(second, 3.0)] == [False, True]
    assert (readers.deadline, readers.overdue(5.9), readers.overdue(6.0)) == (6.0, [], ["a"])
    readers.take(first, 1)
    assert (first.paused, readers.deadline) == (False, 8.0)
    assert readers.send(first, 7.0)
    assert (first.paused, readers.overdue(8.0)) == (True, ["b"])
    readers.forget(second)
    assert readers.deadline == 12.0


def _sequence(name: str):  # type: ignore[no-untyped-def]
    from tierd.core import Sequence

    return Sequence(request(name), None, [])  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(
        tmp_path_factory.mktemp("readers") / "tiny.gguf", format="Q8_0", n_embd=96, head_size=32, ff=160
    )


def test_a_pause_does_not_change_a_stream(tiny: Path) -> None:
    """On the host kernels: read at once or three texts at a time, among others, the text is the same."""
    backend = HostBackend(2)
    requests = [
        request(f"r{i}", [1 + i, 7, 9 * i + 2], 30, model="tiny", temperature=i % 2, seed=i) for i in range(4)
    ]

    def answers(backlog: int) -> list[str]:
        options = Settings(
            server=ServerSettings(reader_backlog=backlog, reader_timeout_s=600), kv=KVSettings(memory_mb=16)
        )
        opener = partial(open_slot, settings=options, site=HostSite(backend))
        with running(model("tiny", path=tiny), open_slot=opener, settings=options) as harness:
            for r in requests:
                harness.engine.submit(r)
            if backlog < 1000:
                names = [r.id for r in requests]
                read = dict.fromkeys(names, 0)
                while len(harness.mail.terminals()) < len(names):
                    for name in names:
                        new = texts(harness, name) - read[name]
                        assert new <= backlog
                        harness.engine.taken(name, new)
                        read[name] += new
            return [harness.mail.text(r.id) for r in requests if harness.mail.terminal(r.id)]

    try:
        assert answers(3) == answers(1000)
    finally:
        backend.close()
