"""Conversations on the real kernels: with the prefix cache every id and every bit of the logits is the same.

Of a second turn only what is new is fed: all but the longest common prefix with what was fed before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random

import pytest

from engine.drive import begin
from engine.null_slot import request
from tierd.backends.host import PAGE_POSITIONS, HostBackend
from tierd.chat.renderer import encode_prompt
from tierd.chat.stops import text_stream
from tierd.core import Request, Sequence
from tierd.engine.flights import counting
from tierd.engine.sampler import pick
from tierd.engine.scheduler import commit, settle
from tierd.settings import EngineSettings, KVSettings, ModelSettings, Settings
from tierd.slot import Slot, open_slot
from tierd.tier.host_site import HostSite
from tiny import write_gemma3, write_llama

CONVERSATIONS = 30
SHARED = 70  # tokens that half of the conversations begin with


@pytest.fixture(scope="module")
def backend() -> Iterator[HostBackend]:
    backend = HostBackend(2)
    yield backend
    backend.close()


def opened(path: Path, backend: HostBackend, *, prefix_cache: bool, kv_dtype: str = "f16") -> Slot:
    settings = Settings(
        engine=EngineSettings(chunk_rows=100), kv=KVSettings(memory_mb=400, prefix_cache=prefix_cache)
    )
    return open_slot(
        ModelSettings(id="m", path=path, kv_dtype=kv_dtype, streams=8), settings, HostSite(backend)
    )


@dataclass
class Served:
    """What came of a request.

    logits: a digest of the bits that each token was picked from.
    formula: how much should have been cached when it was admitted.
    """

    sequence: Sequence
    logits: list[bytes] = field(default_factory=list)
    formula: int = 0


class Server:
    """Serves requests on a slot, eight at a time, and keeps all that came out."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.fed: list[list[int]] = []

    def serve(self, requests: Ordered[Request]) -> list[Served]:
        slot = self.slot
        served = {
            r.id: Served(Sequence(r, text_stream(slot.tokenizer, r.stop), list(r.prompt))) for r in requests
        }
        slot.waiting.extend(each.sequence for each in served.values())
        known: set[str] = set()
        while slot.waiting or slot.running:
            step = begin(slot)
            assert step is not None
            for sequence in slot.running:
                if sequence.request.id not in known:
                    known.add(sequence.request.id)
                    served[sequence.request.id].formula = formula(sequence.request.prompt, self.fed)
            result = slot.executor.collect()
            row = 0
            for sequence, chunk in zip(step.sequences, step.batch.chunks, strict=True):
                if chunk.logit_rows:
                    served[sequence.request.id].logits.append(hashlib.sha256(result.logits(row)).digest())
                    row += 1
            settle(slot, step, failed=False)
            running = list(slot.running)
            commit(slot, step, pick(step, result, counting(slot, step)))
            self.fed += [s.tokens[: s.fed] for s in running if s not in slot.running]
        assert (slot.home.pool.used, slot.home.pool.reserved) == (0, 0)
        assert slot.home.pool.free > 0, "nothing may be evicted here"
        return list(served.values())


def formula(prompt: Ordered[int], fed: Ordered[Ordered[int]]) -> int:
    """The longest common token prefix with what was fed, but one token at least is left to feed."""
    common = (sum(accumulate((a == b for a, b in zip(prompt, tokens, strict=False)), min)) for tokens in fed)
    return min(max(common, default=0), len(prompt) - 1)


def first_turns(vocabulary: int) -> list[Request]:
    """Prompts of many lengths, half of them with a beginning in common; some feed whole pages exactly."""
    dice = Random(5)
    shared = [dice.randrange(vocabulary) for _ in range(SHARED)]
    requests = []
    for i in range(CONVERSATIONS):
        count = dice.randint(1, 24)
        length = 2 * PAGE_POSITIONS + 1 - count if i % 5 == 0 else dice.randint(3, 150)
        prompt = [dice.randrange(vocabulary) for _ in range(length)]
        if i % 2:
            prompt = shared + prompt
        requests.append(request(f"first-{i}", prompt, count, temperature=i % 3 / 2, seed=i))
    return requests


def second_turns(firsts: Ordered[Served], vocabulary: int) -> list[Request]:
    """Each goes on from the first turn, or from shortly before its end, as text that reads otherwise does."""
    dice = Random(6)
    requests = []
    for i, first in enumerate(firsts):
        kept = len(first.sequence.tokens) - dice.choice([0, 0, 1, 2, 5])
        question = [dice.randrange(vocabulary) for _ in range(dice.randint(0 if i % 7 == 0 else 1, 70))]
        prompt = first.sequence.tokens[: max(kept, 1)] + question
        requests.append(request(f"second-{i}", prompt, dice.randint(1, 24), temperature=i % 3 / 2, seed=i))
    return requests


def check(warm: Ordered[Served], cold: Ordered[Served]) -> None:
    """The same ids from the same bits; as much was cached as the formula says."""
    for with_cache, without in zip(warm, cold, strict=True):
        assert with_cache.sequence.tokens == without.sequence.tokens
        assert with_cache.logits == without.logits
        assert len(with_cache.logits) == with_cache.sequence.generated
        assert with_cache.sequence.cached == with_cache.formula
        assert without.sequence.cached == 0


@pytest.mark.parametrize(
    ("write", "options", "kv_dtype"),
    [
        (write_llama, {"format": "Q8_0", "head_size": 32}, "f16"),
        (write_gemma3, {"window": 8}, "f16"),
        (write_gemma3, {"window": 70, "head_size": 64}, "tq4"),
    ],
    ids=["llama", "gemma3", "gemma3-tq4"],
)
def test_thirty_conversations_are_the_same_with_the_cache(
    write: Callable[..., Path],
    options: dict[str, object],
    kv_dtype: str,
    tmp_path: Path,
    backend: HostBackend,
) -> None:
    path = write(tmp_path / "tiny.gguf", context=4096, **options)

    def talk(server: Server) -> tuple[list[Served], list[Served]]:
        vocabulary = server.slot.tokenizer.vocabulary
        firsts = server.serve(first_turns(vocabulary))
        return firsts, server.serve(second_turns(firsts, vocabulary))

    compare(path, backend, talk, kv_dtype)


def compare(
    path: Path,
    backend: HostBackend,
    talk: Callable[[Server], tuple[list[Served], list[Served]]],
    kv_dtype: str = "f16",
) -> None:
    """Talk with the cache and without."""
    turns = {}
    for prefix_cache in (True, False):
        slot = opened(path, backend, prefix_cache=prefix_cache, kv_dtype=kv_dtype)
        turns[prefix_cache] = talk(Server(slot))
        assert slot.home.pool.free + slot.home.pool.cached == slot.home.pool.total
        assert prefix_cache or slot.home.pool.free == slot.home.pool.total
        slot.home.prefixes.flush()
        assert slot.home.pool.free == slot.home.pool.total
        slot.close()
    for warm, cold in zip(turns[True], turns[False], strict=True):
        check(warm, cold)
    assert all(served.sequence.cached > 0 for served in turns[True][1])


QUESTIONS = (
    ("Name three colours.", "And three more?"),
    ("What is the capital of France?", "How many people live there?"),
    ("Write a line about the sea.", "Now one about the mountains."),
    ("Count from one to five.", "Go on to ten."),
    ("Why is the sky blue?", "Say it for a child."),
    ("Translate 'good morning' to Spanish.", "To Italian as well, please."),
)


def chats(server: Server, count: int) -> tuple[list[Served], list[Served]]:
    """Talk as a client does: the answer's text is sent back, and encoded again, with the next question."""
    tokenizer, renderer = server.slot.tokenizer, server.slot.renderer
    assert renderer is not None

    def ask(id: str, messages: list[dict[str, str]]) -> Request:
        return request(id, encode_prompt(tokenizer, renderer.render(messages)), 8, ignore_eos=False)

    talks = [[{"role": "user", "content": f"{QUESTIONS[i % 6][0]} ({i})"}] for i in range(count)]
    firsts = server.serve([ask(f"first-{i}", messages) for i, messages in enumerate(talks)])
    for i, (messages, first) in enumerate(zip(talks, firsts, strict=True)):
        answer = tokenizer.decode(first.sequence.tokens[len(first.sequence.request.prompt) :])
        messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": QUESTIONS[i % 6][1]})
    return firsts, server.serve([ask(f"second-{i}", messages) for i, messages in enumerate(talks)])


@pytest.mark.parametrize("count", [3, pytest.param(CONVERSATIONS, marks=pytest.mark.long)])
def test_chats_of_a_real_model_are_the_same_with_the_cache(
    count: int, smollm2_path: Path, backend: HostBackend
) -> None:
    compare(smollm2_path, backend, lambda server: chats(server, count))
