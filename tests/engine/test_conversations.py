"""Warm equals cold: in conversations the same ids are said alone, and whatever the server does besides.

Those alone are held one after the other, every prompt fed from its first token on. Others find what is kept
of turns before and of openings that they share; are held beside eight at any time; or where there are pages
for a few of them, and priorities differ, so that streams give up their pages and come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from engine.conversing import MODEL, Answer, Talk, conversing
from tierd.backends.host import HostBackend
from tierd.chat.renderer import Renderer, encode_prompt
from tierd.chat.tokenizer import Tokenizer
from tierd.kv.bank import Bank
from tierd.settings import KVSettings, ModelSettings, QueueSettings, ServerSettings, Settings
from tierd.slot import open_slot
from tierd.tier.host_site import HostSite

CONTEXT = 1024
# What 64 positions of SmolLM2's take.
PAGE_KIB = {"f16": 1440, "q8_0": 765, "tq4": 405}
OTHERS = 8

OPENINGS = (
    "",
    "You answer in one or two short sentences, in plain words, and never ask anything back. ",
    "You are the keeper of a lighthouse. Tell things as you would tell them to a guest on a stormy night. ",
)
QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Write a line about the sea. Then write the same line once more, but as a question.",
    "Count from one to twenty in words, with commas in between, then backwards.",
    "Why is the sky blue? Explain it to a child of six who has never been told anything about light before.",
    "Translate 'good morning, how did you sleep?' to Spanish, Italian and German.",
    "Name five animals that live in the desert, and for each of them say what it eats, where it sleeps and "
    "how it keeps cool at noon. Put every animal on a line of its own, and begin the line with a dash.",
    "Say that again in other words.",
    "Tell me a story that begins with a key.",
    "Thanks! And how would you explain it to a grandmother?",
)


def talks(count: int, turns: int, tokens: Ordered[int]) -> list[Talk[str]]:
    """Of every three two have an opening in common with others; every other one draws at random."""
    return [
        Talk(
            questions=tuple(
                OPENINGS[i % 3] * (not turn) + f"{QUESTIONS[(i + 2 * turn) % 9]} ({i})"
                for turn in range(turns)
            ),
            tokens=tokens[i % len(tokens)],
            temperature=i % 2 * 0.8,
            seed=100 * i,
            priority=i % 3,
        )
        for i in range(count)
    ]


def prompts(
    renderer: Renderer, tokenizer: Tokenizer, questions: Ordered[str], answers: Ordered[Ordered[int]]
) -> list[int]:
    """Send the whole conversation as a client does: of answers it has the text."""
    messages = [{"role": "user", "content": questions[0]}]
    for answer, question in zip(answers, questions[1:], strict=True):
        said = tokenizer.decode([token for token in answer if token not in tokenizer.end_ids])
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": question}]
    return encode_prompt(tokenizer, renderer.render(messages))


@dataclass(frozen=True)
class Way:
    """How conversations are held. at_once: how many. pages: of all; the bank has room for a fifth as many."""

    at_once: int
    prefix_cache: bool = True
    pages: int = 500


WAYS = {
    "with the prefix cache": Way(1),
    "beside eight others": Way(1 + OTHERS),
    "pausing": Way(1 + OTHERS, pages=20),
}
ALONE = Way(1, prefix_cache=False)


@dataclass(frozen=True)
class Held:
    """What came of conversations. preemptions: how many there were, by what became of the rows."""

    answers: list[list[Answer]]
    preemptions: Counter[str]

    @property
    def ids(self) -> int:
        return sum(len(answer.ids) for talk in self.answers for answer in talk)

    @property
    def cached(self) -> int:
        """How many positions of prompts were known."""
        return sum(answer.cached for talk in self.answers for answer in talk)


def hold(path: Path, codec: str, asked: Ordered[Talk[str]], way: Way, context: int = CONTEXT) -> Held:
    """Hold conversations with a model on the host."""
    backend = HostBackend(1)
    kib = way.pages * PAGE_KIB[codec]
    bank = Bank(1024 * kib // 5)
    settings = Settings(
        server=ServerSettings(reader_backlog=65536),  # nobody reads
        queue=QueueSettings(timeout_s=0),
        kv=KVSettings(memory_mb=-(-kib // 1024), prefix_cache=way.prefix_cache),
    )
    served = ModelSettings(id=MODEL, path=path, streams=way.at_once, context=context, kv_dtype=codec)
    opener = partial(open_slot, settings=settings, site=HostSite(backend, bank=bank))
    try:
        with conversing(served, opener, settings, bank=bank) as house:
            slot = house.slot
            assert slot.renderer is not None
            encode = partial(prompts, slot.renderer, slot.tokenizer)
            answers = house.hold(asked, encode, at_once=way.at_once)
        room = slot.home.room
        assert room.free + room.cached == room.total
        assert not bank.entries
    finally:
        backend.close()
    return Held(answers, slot.preemptions)


def test_a_few_of_a_real_model(smollm2_path: Path) -> None:
    asked = talks(4, 2, (12, 32))
    alone = hold(smollm2_path, "f16", asked, ALONE, 256)
    pausing = hold(smollm2_path, "f16", asked, Way(4, pages=5), 256)
    assert pausing.answers == alone.answers
    assert pausing.cached > alone.cached == 0
    assert pausing.preemptions.total() > 0


@pytest.mark.long
@pytest.mark.parametrize(("codec", "count"), [("f16", 50), ("q8_0", 10), ("tq4", 10)])
def test_many_of_a_real_model(
    codec: str, count: int, smollm2_path: Path, record_property: Callable[[str, object], None]
) -> None:
    asked = talks(count + OTHERS, 3, (16, 40, 70, 100))
    alone = hold(smollm2_path, codec, asked[:count], ALONE)
    assert alone.cached == 0
    record_property("conversations", count)
    record_property("turns", sum(map(len, alone.answers)))
    record_property("ids", alone.ids)
    for name, way in WAYS.items():
        # The others are held to the end, for the last of those that are compared to have company.
        other = hold(smollm2_path, codec, asked if way.at_once > 1 else asked[:count], way)
        record_property(f"{name}, positions cached", other.cached)
        record_property(f"{name}, preemptions", dict(other.preemptions))
        assert other.answers[:count] == alone.answers
        assert other.cached > 0
        assert bool(other.preemptions) == (name == "pausing")
