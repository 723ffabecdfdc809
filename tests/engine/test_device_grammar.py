"""Streams that have a grammar, on a software device: in company, moved to the CPU, and when it is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.device_live import Served, serving
from engine.failing import SUBMIT, WAIT, Phase
from engine.null_slot import request
from engine.words import Word, is_word
from tier.tiers import model
from tierd.backends.vkapi.results import DEVICE_LOST
from tierd.core import FinishedEvent, FinishReason, SamplingParams
from tierd.tier import retries
from tiny import write_llama

CONTEXT = 1024
PHASES = {
    "wait": Phase("collect", WAIT),
    "submission behind a step": Phase("submit", SUBMIT, flights=1),
    "submission of a read-back": Phase("collect", SUBMIT),
}
WAYS = {
    "greedy": SamplingParams(temperature=0),
    "random": SamplingParams(temperature=1.5, seed=4, top_k=40),
    "penalised": SamplingParams(temperature=0, repeat_penalty=1.4, logit_bias=((98, 1.0),)),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("grammar") / "tiny.gguf", head_size=32, ff=96, context=CONTEXT)


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retries, "TRIES", 1000)
        with serving(replace(model(path, context=256, regions=6), streams=6)) as served:
            yield served


def prompt(seed: int, length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 300, length)]


def ask(served: Served, asked: list[int], sampling: SamplingParams, length: int = 12) -> str:
    """Submit a request for a word."""
    served.asked += 1
    tokenizer = served.harness.slots["tiny"].tokenizer
    word = Word(length, end=min(tokenizer.end_ids), vocabulary=tokenizer.vocabulary)
    wanted = request(f"r{served.asked}", asked, 60, model="tiny", ignore_eos=False)
    served.harness.engine.submit(replace(wanted, sampling=sampling, grammar=word, top_logprobs=0))
    return wanted.id


def word(served: Served, id: str, length: int = 12) -> list[int]:
    """Wait for a stream's end; return its word."""
    end = served.harness.mail.terminal(id)
    assert isinstance(end, FinishedEvent), end
    assert end.reason is FinishReason.STOP
    tokens = served.tokens(id)
    assert is_word(tokens, length), tokens
    return tokens


def test_the_same_words_alone_and_in_company(served: Served) -> None:
    cases = [(prompt(n, 9 + 7 * n), sampling) for n in range(2) for sampling in WAYS.values()]
    alone = [word(served, ask(served, *case)) for case in cases]
    others = [served.ask(prompt(20 + n, 15), 60) for n in range(3)]
    together = [ask(served, *case) for case in cases]
    assert [word(served, id) for id in together] == alone
    for n, id in enumerate(others):
        served.check(id, prompt(20 + n, 15), 60)
    assert not served.passes()
    served.rests()


@pytest.mark.parametrize("phase", PHASES)
def test_a_word_goes_on_when_the_device_is_lost(served: Served, phase: str) -> None:
    flat = SamplingParams(temperature=100.0)
    sampling = flat if "read-back" in phase else WAYS["greedy"]
    with PHASES[phase].failing(DEVICE_LOST) as met:
        asked = [ask(served, prompt(40 + n, 30), sampling, 40) for n in range(2)]
        other = served.ask(prompt(50, 20), 30, flat="read-back" in phase)
        for id in asked:
            word(served, id, 40)
        served.check(other, prompt(50, 20), 30, greedy="read-back" not in phase)
        assert met.is_set()
    served.rests()
    served.forget_devices()


def test_a_word_that_outgrows_its_region_goes_on_on_the_cpu(path: Path) -> None:
    with serving(model(path, context=CONTEXT, regions=6), vram_limit_mb=2) as served:
        most = served.harness.slots["tiny"].home.most
        word(served, ask(served, prompt(0, most - 5), WAYS["random"], 30), 30)
        assert set(served.passes()) == {"cap"}
        served.rests()
