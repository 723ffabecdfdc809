"""Clients that go away are out of the very next step, wherever their requests were; nobody else notices."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from live import Gate, Live, serve, wait_until
from tierd.backends.null import NullBackend
from tierd.core import Batch
from tierd.engine import ModelSnapshot
from tierd.settings import EngineSettings, ModelSettings

DROPPED, STAYING = 16, 4
PROMPT = 24


class Recorder(Gate):
    """Lets steps through one by one and keeps their batches."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Batch] = []
        self._let_through = 0

    def __call__(self, batch: Batch) -> None:
        self.batches.append(batch)
        super().__call__(batch)

    def next(self) -> Batch:
        """Let the step at the gate pass, once there is one; return the one that comes then."""
        wait_until(lambda: len(self.batches) == self._let_through + 1)
        self._let_through += 1
        self.step()
        wait_until(lambda: len(self.batches) == self._let_through + 1)
        return self.batches[-1]


class House:
    """A server, its gate, and what is known of its one model."""

    def __init__(self, live: Live, gate: Recorder) -> None:
        self.live = live
        self.gate = gate

    @property
    def state(self) -> ModelSnapshot:
        return self.live.engine.snapshot.models["tiny"]

    def ask(self, first: int, *, stream: bool, length: int = PROMPT, tokens: int = 60) -> socket.socket:
        """Send a request whose prompt is of its own from the first token on."""
        prompt = [first] + [7] * (length - 1)
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return self.live.send("/v1/completions", body | {"stream": stream})

    def submitted(self, count: int) -> bool:
        return self.state.running + self.state.waiting == count

    def cancelled(self, count: int) -> bool:
        line = f'tierd_requests_total{{model="tiny",outcome="cancelled"}} {count}.0'
        return line in self.live.get("/metrics").text


@contextmanager
def house(model: ModelSettings, *, streams: int, chunk_rows: int = 4096) -> Iterator[House]:
    gate = Recorder()
    with serve(
        [replace(model, streams=streams)],
        backend=NullBackend(before_step=gate),
        engine=EngineSettings(chunk_rows=chunk_rows, gap_ms=0),
    ) as live:
        try:
            yield House(live, gate)
        finally:
            gate.open()


def pages(batch: Batch) -> list[int]:
    """Return each row's first page, which tells whose it is."""
    return [chunk.pages[0] for chunk in batch.chunks]


def text_of(connection: socket.socket) -> bytes:
    data = b""
    with connection:
        while b'"text"' not in data or not data.endswith(b"}"):
            data += connection.recv(65536)
    return data.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_dropped_while_they_generate(tiny_model: ModelSettings, stream: bool) -> None:
    with house(tiny_model, streams=DROPPED + STAYING) as at:
        staying = [at.ask(i, stream=False) for i in range(STAYING)]
        wait_until(lambda: at.submitted(STAYING))
        dropped = [at.ask(100 + i, stream=stream) for i in range(DROPPED)]
        wait_until(lambda: at.submitted(STAYING + DROPPED))
        before = at.gate.next()
        while len(before.chunks) < STAYING + DROPPED or before.rows > len(before.chunks):
            before = at.gate.next()
        kept = pages(before)[:STAYING]
        for connection in dropped:
            connection.close()
        wait_until(lambda: at.cancelled(DROPPED))
        after = at.gate.next()
        assert pages(after) == kept
        assert [chunk.start for chunk in after.chunks] == [
            chunk.start + 1 for chunk in before.chunks[:STAYING]
        ]
        assert (at.state.running, at.state.waiting) == (STAYING, 0)
        assert at.state.pages_used == sum(len(chunk.pages) for chunk in after.chunks)
        at.gate.open()
        texts = [text_of(connection) for connection in staying]
        wait_until(lambda: at.state.pages_used == 0)
        assert at.state.pages_free + at.state.pages_cached == at.state.pages_total
        alone = [text_of(at.ask(i, stream=False)) for i in range(STAYING)]
    assert [_answer(text) for text in texts] == [_answer(text) for text in alone]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("budget", [96, DROPPED * 200], ids=["one is, and 15 behind it", "all in one step"])
def test_dropped_while_their_prompts_are_fed(tiny_model: ModelSettings, stream: bool, budget: int) -> None:
    with house(tiny_model, streams=DROPPED + STAYING, chunk_rows=budget) as at:
        staying = [at.ask(i, stream=False, length=1) for i in range(STAYING)]
        wait_until(lambda: at.submitted(STAYING))
        before = at.gate.next()
        while before.rows != STAYING or len(before.chunks) != STAYING:
            before = at.gate.next()
        dropped = [at.ask(100 + i, stream=stream, length=200, tokens=8) for i in range(DROPPED)]
        wait_until(lambda: at.submitted(STAYING + DROPPED))
        during = at.gate.next()
        assert during.rows == STAYING + budget
        assert len(during.chunks) == STAYING + -(-budget // 200)
        for connection in dropped:
            connection.close()
        wait_until(lambda: at.cancelled(DROPPED))
        after = at.gate.next()
        assert pages(after) == pages(before)
        assert after.rows == STAYING
        assert (at.state.running, at.state.waiting) == (STAYING, 0)
        at.gate.open()
        for connection in staying:
            text_of(connection)
        wait_until(lambda: at.state.pages_used == 0)
        assert at.state.pages_free + at.state.pages_cached == at.state.pages_total


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_dropped_while_they_wait(tiny_model: ModelSettings, stream: bool) -> None:
    with house(tiny_model, streams=STAYING) as at:
        staying = [at.ask(i, stream=False, tokens=5) for i in range(STAYING)]
        wait_until(lambda: at.submitted(STAYING))
        dropped = [at.ask(100 + i, stream=stream) for i in range(DROPPED)]
        wait_until(lambda: at.submitted(STAYING + DROPPED))
        last = at.ask(99, stream=False, tokens=5)
        wait_until(lambda: at.submitted(STAYING + DROPPED + 1))
        for connection in dropped:
            connection.close()
        wait_until(lambda: at.cancelled(DROPPED))
        assert at.state.waiting <= STAYING
        count = len(at.gate.batches)
        at.gate.open()
        for connection in [*staying, last]:
            text_of(connection)
        fed = {
            chunk.tokens[0] for batch in at.gate.batches[count:] for chunk in batch.chunks if chunk.start == 0
        }
        assert 99 in fed
        assert not fed & set(range(100, 100 + DROPPED))
        wait_until(lambda: at.state.pages_used == 0)


def _answer(body: bytes) -> bytes:
    return body[body.index(b'"choices"') : body.index(b'"usage"')]
