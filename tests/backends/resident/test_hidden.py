"""Hidden states from the device: against plain numpy, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import tiny
from backends.resident.conftest import SMALL, TOKENS, WIDE, Opener, feed
from reference.plan_forward import plan_forward
from tierd.backends.resident.executor import ResidentExecutor
from tierd.core import Batch, Chunk, Draw
from tierd.models import GGUFFile, build_plan

MODELS = {
    "llama": tiny.write_llama,
    "gemma3": tiny.write_gemma3,
    "a width of no whole blocks": lambda path: tiny.write_llama(path, n_embd=72),
    "quantised": lambda path: tiny.write_llama(path, format="Q4_1", **WIDE),
}


@pytest.fixture(scope="module", params=MODELS)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    with GGUFFile.open(MODELS[request.param](tmp_path_factory.mktemp("hidden") / "tiny.gguf")) as file:
        yield file


def states(executor: ResidentExecutor, *, region: int, step: int) -> np.ndarray:
    """Feed the tokens in chunks; return the hidden states of all of them."""
    found = []
    for at in range(0, len(TOKENS), step):
        part = TOKENS[at : at + step]
        executor.submit(Batch((Chunk(part, at, (region,), hidden_rows=range(len(part))),)))
        found.append(executor.collect().hidden.copy())
    return np.concatenate(found)


def test_they_are_what_the_last_norm_leaves_in_any_company(file: GGUFFile, opened: Opener) -> None:
    plan, executor = build_plan(file), opened(file)
    whole = states(executor, region=0, step=SMALL.max_rows)
    expected = plan_forward(replace(plan, logits=plan.hidden), file, TOKENS, dtype=np.float64)
    error = np.linalg.norm(whole - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert error.max() < (2e-3 if file.tensors["blk.0.attn_q.weight"].format.name == "F32" else 0.05)

    for region, step in ((3, 1), (5, 7)):
        np.testing.assert_array_equal(states(executor, region=region, step=step), whole)
    logits = feed(executor, TOKENS[:20], region=1)
    draws = (Draw(), Draw(top_logprobs=1))
    for at in range(0, len(TOKENS), 16):
        part = TOKENS[at : at + 16]
        beside = Chunk(TOKENS[:8], 0, (1,), (7,), (0,))
        amid = Batch((beside, Chunk(part, at, (2,), hidden_rows=range(len(part))), beside_of(2)), draws)
        after = Batch((Chunk((-1,), 8, (1,), (0,)), Chunk(TOKENS[50:60], 0, (6,), (), (9,))), (Draw(),))
        executor.submit(amid)
        executor.submit(after)  # while the first one's are not looked at yet
        result = executor.collect()
        assert result.drawn(0) == logits[7].argmax()
        assert result.hidden_read == 1 + len(part)
        np.testing.assert_array_equal(result.hidden[1:], whole[at : at + len(part)])
        np.testing.assert_array_equal(result.hidden[0], whole[0])
        executor.collect()


def beside_of(region: int) -> Chunk:
    """Return a chunk of another region, whose last row is drawn from."""
    return Chunk(TOKENS[5:9], 0, (region + 2,), (3,))


def test_two_calls_more_take_a_step_and_its_hidden_states(file: GGUFFile, opened: Opener) -> None:
    """One submission beside that of the step brings them, and nothing is recorded or made for it."""
    executor = opened(file)
    batch = Batch((Chunk(TOKENS[:32], 0, (0,), hidden_rows=range(32)),))
    executor.submit(batch)
    executor.collect()
    before = executor.calls
    executor.submit(batch)
    executor.collect()
    assert executor.calls - before == 3
