"""Log-probabilities of prompts on real kernels: of SmolLM2 on the host, and of a tiny model on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from engine.device_live import Served, serving
from engine.drive import enqueue, run, serve
from engine.null_slot import request
from engine.scored import scores, scoring
from reference import oracle
from reference.forward import forward
from tier.tiers import model
from tierd.backends.host import HostBackend
from tierd.backends.picking import measure
from tierd.core import Batch, Chunk, FinishedEvent, TextEvent, TokenLogprobs
from tierd.settings import KVSettings, ModelSettings, Settings
from tierd.slot import Slot, open_slot
from tierd.tier.host_site import HostSite
from tiny import write_llama

# Mean KL at most of SmolLM2 with K/V of f16 (DESIGN.md, section 8).
BOUND = 0.0024


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Slot]:
    settings = Settings(kv=KVSettings(memory_mb=256))
    with closing(HostBackend(2)) as backend:
        slot = open_slot(ModelSettings(id="m", path=smollm2_path, streams=16), settings, HostSite(backend))
        yield slot
        slot.close()


@pytest.fixture(scope="module")
def text(oracle_dir: Path) -> dict[str, list]:
    return oracle.load(oracle_dir, oracle.SMOLLM2)["float32"]


def scored(slot: Slot, prompt: Sequence[int], top: int = 20) -> list[TokenLogprobs]:
    enqueue(slot, scoring("s", prompt, top=top, model="m"))
    return scores(serve(slot))["s"]


def test_scores_are_near_those_of_a_float32_forward(smollm2: Slot, text: dict[str, list]) -> None:
    """Over the ids that both name, and one bucket for the rest: that is no more than the whole divergence."""
    tokens = text["tokens"]
    found = scored(smollm2, tokens)
    assert [entry.token for entry in found] == tokens[1:]
    divergences, told = [], 0
    for row in text["top20"][: len(found)]:
        entry, truth = found[row["pos"]], dict(zip(row["ids"], row["logprobs"], strict=True))
        ours = dict(entry.top)
        both = sorted(truth.keys() & ours.keys())
        assert len(both) >= 10
        p, q = (np.exp([known[id] for id in both]) for known in (truth, ours))
        p, q = np.append(p, 1 - p.sum()), np.append(q, 1 - q.sum())
        divergences.append(float(np.sum(p * np.log(p / q))))
        if entry.token in truth:
            told += 1
            assert entry.logprob == pytest.approx(truth[entry.token], abs=0.5)
    assert len(divergences) == len(found)
    assert np.mean(divergences) <= BOUND
    assert told > len(found) / 2


def test_scores_are_the_same_alone_in_chunks_and_among_streams(smollm2: Slot, text: dict[str, list]) -> None:
    tokens = text["tokens"][:70]
    pages = range(smollm2.executor.pages)[-2:]
    rows = smollm2.executor.run(Batch((Chunk(tokens, 0, pages, tuple(range(69))),)))
    whole = [measure(row, token, 3) for row, token in zip(rows, tokens[1:], strict=True)]
    assert scored(smollm2, tokens, 3) == whole
    run(smollm2, request("before", tokens, 2, model="m"))
    rows_of_chunk = smollm2.chunk_rows
    try:
        smollm2.chunk_rows = 7
        enqueue(smollm2, *(request(f"t{n}", range(40, 60 + n), 30, model="m") for n in range(4)))
        streams = serve(smollm2)
        next(streams)
        assert scored(smollm2, tokens, 3) == whole
    finally:
        smollm2.chunk_rows = rows_of_chunk


# ---- On a device ---------------------------------------------------------------------------------------

PROMPT = [int(token) for token in np.random.default_rng(6).integers(0, 300, 40)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("scores") / "tiny.gguf", head_size=32, ff=96)


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[Served]:
    with serving(model(path, context=64, regions=3)) as served:
        yield served


def told(served: Served, name: str, top: int) -> list[TokenLogprobs]:
    served.harness.engine.submit(scoring(name, PROMPT, top=top, model="tiny"))
    end = served.harness.mail.terminal(name)
    assert isinstance(end, FinishedEvent), end
    events = [event for event in served.harness.mail.events(name) if isinstance(event, TextEvent)]
    return [entry for event in events for entry in event.prompt]


def rows_read(served: Served) -> float:
    name = "tierd_gpu_logit_rows_read_total"
    return served.harness.metrics.registry.get_sample_value(name, {"model": "tiny"}) or 0.0


def test_the_device_tells_what_a_plain_forward_does(served: Served, path: Path) -> None:
    """The same bits again beside a stream. Rows are read back only where likely ids are asked for."""
    exact = oracle.log_softmax(forward(path, PROMPT))[:-1]
    before = rows_read(served)
    alone = told(served, "alone", 0)
    assert [entry.token for entry in alone] == PROMPT[1:]
    found = [entry.logprob for entry in alone]
    np.testing.assert_allclose(found, exact[np.arange(39), PROMPT[1:]], atol=5e-3, rtol=0)
    assert rows_read(served) == before
    stream = served.ask([*PROMPT[:20], 7], 30)
    assert told(served, "amid", 0) == alone
    served.check(stream, [*PROMPT[:20], 7], 30)
    assert rows_read(served) == before
    likely = told(served, "likely", 3)
    assert rows_read(served) == before + 39
    np.testing.assert_allclose([entry.logprob for entry in likely], found, atol=1e-5, rtol=0)
    best = np.sort(exact, axis=1)[:, :-4:-1]
    tops = [[logprob for _, logprob in entry.top] for entry in likely]
    np.testing.assert_allclose(tops, best, atol=5e-3, rtol=0)
    assert served.passes() == {}
    served.rests()
