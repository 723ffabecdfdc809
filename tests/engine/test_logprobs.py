"""Log-probabilities go out with the text of their tokens: none early, none twice, none of what is cut off."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from engine.harness import NULL, model, running
from engine.null_slot import ByteTokenizer, null_slot, request
from tierd.backends.host import HostBackend
from tierd.chat.stops import text_stream
from tierd.core import (
    Batch,
    Chunk,
    FinishedEvent,
    FinishReason,
    SamplingParams,
    Sequence,
    TextEvent,
    TokenLogprobs,
)
from tierd.engine.scheduler import commit, schedule, settle
from tierd.settings import KVSettings, Settings
from tierd.slot import open_slot
from tierd.tier.host_site import HostSite
from tiny import write_llama

END = ByteTokenizer.eos_id


def told(tokens: list[int], **options: object) -> list[tuple[str, list[int]]]:
    """Commit the given tokens one by one; return the text events, each with the tokens it tells of."""
    slot = null_slot(NULL)
    asked = replace(request("a", b"?", **options), top_logprobs=0)  # type: ignore[arg-type]
    sequence = Sequence(asked, text_stream(slot.tokenizer, asked.stop), list(asked.prompt))
    slot.waiting.append(sequence)
    events: list[tuple[str, list[int]]] = []
    for i, token in enumerate(tokens):
        step = schedule(slot)
        assert step is not None
        slot.steps.append(step)
        settle(slot, step, failed=False)
        for _, event in commit(slot, step, [token], [TokenLogprobs(token, -float(i))]):
            if isinstance(event, TextEvent):
                events.append((event.text, [entry.token for entry in event.logprobs]))
                continue
            assert isinstance(event, FinishedEvent)
            assert sequence.told == sum(len(ids) for _, ids in events)
            ends = token == END and not asked.ignore_eos
            assert [entry.token for entry in event.logprobs] == [END] * ends
            return events
    raise AssertionError("the stream did not end")


def test_each_text_tells_its_tokens() -> None:
    assert told([*b"Hi"], max_tokens=2) == [("H", [72]), ("i", [105])]


def test_a_token_that_ends_the_stream_is_told_with_the_end_alone() -> None:
    assert told([*b"H", END], ignore_eos=False) == [("H", [72])]
    assert told([END], ignore_eos=False) == []


def test_parts_of_a_character_come_with_the_character() -> None:
    assert told([0xC3, 0xA9, 0x41], max_tokens=3) == [("é", [0xC3, 0xA9]), ("A", [0x41])]
    assert told([0x41, 0xC3], max_tokens=2) == [("A", [0x41]), ("\N{REPLACEMENT CHARACTER}", [0xC3])]


def test_a_token_without_text_comes_with_the_next_or_at_the_end() -> None:
    assert told([END, 0x41, END], max_tokens=3) == [("A", [END, 0x41]), ("", [END])]


def test_what_may_become_a_stop_string_is_held_back_with_its_text() -> None:
    assert told([*b"abcx"], max_tokens=4, stop=("bcd",)) == [("a", [97]), ("bcx", [98, 99, 120])]


def test_tokens_of_a_stop_string_are_not_told() -> None:
    assert told([*b"abc"], max_tokens=9, stop=("bc",)) == [("a", [97])]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logprobs") / "tiny.gguf"
    return write_llama(path, format="Q8_0", n_embd=96, head_size=32, ff=160)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_they_are_the_log_softmax_of_the_executors_logits(tiny: Path, temperature: float) -> None:
    settings = Settings(kv=KVSettings(memory_mb=16))
    backend = HostBackend(1)
    try:
        opener = partial(open_slot, settings=settings, site=HostSite(backend))
        sampling = SamplingParams(
            temperature=temperature, top_k=5, repeat_penalty=1.2, logit_bias=((7, -100.0), (70, 3.0))
        )
        asked = replace(request("r", [5, 6, 7], 24, model="tiny"), sampling=sampling, top_logprobs=20)
        with running(model("tiny", path=tiny), open_slot=opener) as harness:
            harness.engine.submit(asked)
            end = harness.mail.terminal("r")
            assert isinstance(end, FinishedEvent)
            assert end.reason is FinishReason.LENGTH
            events = [event for event in harness.mail.events("r") if isinstance(event, TextEvent)]
        entries = [entry for event in events for entry in event.logprobs]
        assert len(entries) == 24

        slot = opener(model("tiny", path=tiny))
        tokens = (*asked.prompt, *(entry.token for entry in entries[:-1]))
        rows = tuple(range(len(asked.prompt) - 1, len(tokens)))
        logits = slot.executor.run(Batch((Chunk(tokens, 0, tuple(range(slot.home.pool.total)), rows),)))
        exact = logits.astype(np.float64)
        exact -= exact.max(axis=1, keepdims=True)
        exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
        slot.close()
    finally:
        backend.close()
    for row, entry in zip(exact, entries, strict=True):
        best = np.lexsort((np.arange(row.size), -row))[:20]
        assert entry.logprob == pytest.approx(row[entry.token], abs=2e-6)
        assert [id for id, _ in entry.top] == best.tolist()
        assert [logprob for _, logprob in entry.top] == pytest.approx(row[best], abs=2e-6)
    assert 7 not in {entry.token for entry in entries}
