"""Embeddings on real kernels: of SmolLM2 on the host, and of a tiny model on a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from engine.device_live import Served, serving
from engine.drive import enqueue, run, serve
from engine.embedded import POOLINGS, embed, pooled, vectors
from engine.failing import WAIT, Phase
from engine.null_slot import request
from reference.forward import hidden_states
from tier.tiers import model
from tierd.backends.host import HostBackend
from tierd.backends.vkapi.results import DEVICE_LOST
from tierd.core import FinishedEvent, Pooling
from tierd.settings import KVSettings, ModelSettings, Settings
from tierd.slot import Slot, open_slot
from tierd.tier.host_site import HostSite
from tiny import write_llama

PAIRS = [
    ("A cat is sleeping on the warm sofa.", "The kitten naps on a soft couch."),
    ("The stock market fell sharply on Monday.", "Share prices dropped steeply at the start of the week."),
    ("How do I bake bread at home?", "What is a simple recipe for a homemade loaf?"),
    ("The rocket was launched into orbit.", "A satellite was sent to space today."),
]
TEXTS = [text for pair in PAIRS for text in pair]
LONG = " ".join(TEXTS[:4])


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Slot]:
    settings = Settings(kv=KVSettings(memory_mb=256))
    with closing(HostBackend(2)) as backend:
        slot = open_slot(ModelSettings(id="m", path=smollm2_path, streams=16), settings, HostSite(backend))
        yield slot
        slot.close()


def embedded(slot: Slot, *texts: str, pooling: Pooling = Pooling.MEAN) -> np.ndarray:
    """Return the vectors of texts that are asked for at the same time."""
    prompts = [slot.tokenizer.encode(text, add_special=True, parse_special=True) for text in texts]
    enqueue(slot, *(embed(f"e{n}", prompt, pooling, model="m") for n, prompt in enumerate(prompts)))
    found = vectors(serve(slot))
    return np.array([found[f"e{n}"].embedding for n in range(len(texts))])


def test_what_means_the_same_lies_near(smollm2: Slot) -> None:
    """Of eight texts each one's nearest is the other of its pair, though the model was not made for it."""
    found = embedded(smollm2, *TEXTS)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    likeness = found @ found.T
    np.fill_diagonal(likeness, -1)
    assert likeness.argmax(axis=1).tolist() == [1, 0, 3, 2, 5, 4, 7, 6]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_vector_is_the_same_alone_in_chunks_and_among_streams(smollm2: Slot, pooling: Pooling) -> None:
    (alone,) = embedded(smollm2, LONG, pooling=pooling)
    rows = smollm2.chunk_rows
    try:
        for smollm2.chunk_rows in (1, 7, 16):
            smollm2.flush()
            (found,) = embedded(smollm2, LONG, pooling=pooling)
            np.testing.assert_array_equal(found, alone)
    finally:
        smollm2.chunk_rows = rows
    smollm2.flush()
    enqueue(smollm2, *(request(f"t{n}", range(40, 60 + n), 10, model="m") for n in range(8)))
    streams = serve(smollm2)
    next(streams)
    (found,) = embedded(smollm2, LONG, pooling=pooling)
    np.testing.assert_array_equal(found, alone)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_vector_is_the_same_behind_what_others_were_fed(smollm2: Slot, pooling: Pooling) -> None:
    ids = smollm2.tokenizer.encode(LONG, add_special=True, parse_special=True)
    smollm2.flush()
    (cold,) = embedded(smollm2, LONG, pooling=pooling)
    run(smollm2, request("before", ids, 2, model="m"))
    (warm,) = embedded(smollm2, LONG, pooling=pooling)
    np.testing.assert_array_equal(warm, cold)


# ---- On a device ---------------------------------------------------------------------------------------

PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, 300, 60)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("embeddings") / "tiny.gguf", head_size=32, ff=96)


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[Served]:
    with serving(model(path, context=128, regions=3)) as served:
        yield served


def vector(served: Served, name: str, pooling: Pooling) -> np.ndarray:
    served.harness.engine.submit(embed(name, PROMPT, pooling, model="tiny"))
    end = served.harness.mail.terminal(name)
    assert isinstance(end, FinishedEvent), end
    assert end.embedding is not None
    return end.embedding


def count(served: Served, name: str) -> float:
    return served.harness.metrics.registry.get_sample_value(name, {"model": "tiny"}) or 0.0


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_device_gives_the_vectors_of_a_plain_forward(
    pooling: Pooling, served: Served, path: Path
) -> None:
    """The same bits again beside a stream, whose draws need no logits of the host's for it."""
    served.harness.engine.flush("tiny").result()
    read = count(served, "tierd_gpu_hidden_rows_read_total")
    logits = count(served, "tierd_gpu_logit_rows_read_total")
    alone = vector(served, f"alone {pooling}", pooling)
    expected = pooled(hidden_states(path, PROMPT), pooling)
    np.testing.assert_allclose(alone, expected, atol=2e-3, rtol=0)  # K and V are f16
    of_all = len(PROMPT) if pooling is Pooling.MEAN else 1
    assert count(served, "tierd_gpu_hidden_rows_read_total") == read + of_all
    stream = served.ask([*PROMPT[:20], 7], 30)
    np.testing.assert_array_equal(vector(served, f"amid {pooling}", pooling), alone)
    served.check(stream, [*PROMPT[:20], 7], 30)
    assert count(served, "tierd_gpu_logit_rows_read_total") == logits
    assert served.passes() == {}
    served.rests()


def test_a_lost_device_costs_no_vector(served: Served, path: Path) -> None:
    with Phase("collect", WAIT).failing(DEVICE_LOST) as met:
        found = vector(served, "lost", Pooling.MEAN)
        assert met.is_set()
    expected = pooled(hidden_states(path, PROMPT), Pooling.MEAN)
    np.testing.assert_allclose(found, expected, atol=2e-3, rtol=0)
    served.rests()
    served.forget_devices()
