"""Streams of a device that compute on the CPU as well: each of their tokens is the best there, or nearly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.device_live import ANSWER, Served, serving
from tier.tiers import model
from tiny import write_llama


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("crossings") / "tiny.gguf", head_size=32, ff=96, context=1024)


def prompt(seed: int, length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 300, length)]


@pytest.mark.parametrize(("bank", "hidden"), [(1 << 20, "1"), (0, "1"), (1 << 20, "0")])
def test_a_stream_that_outgrows_its_region_goes_on_on_the_cpu(
    path: Path, bank: int, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its rows, or fed again where the bank has no room for them.

    hidden: whether the device's memory is from the host.
    """
    monkeypatch.setenv("TIERD_HIDE_HOST_VISIBLE", hidden)
    with serving(model(path, context=1024, regions=6), vram_limit_mb=2, bank=bank) as served:
        most = served.harness.slots["tiny"].home.most
        assert 512 <= most < 1024
        asked = prompt(0, most - 5)
        served.serve(asked)
        refed = served.refed()
        assert refed == (0 if bank else most)
        fed = len(asked) + ANSWER - 1 - most + refed
        assert served.passes() == {"cap": fed if bank else math.ceil((most + 1) / 16) + fed - refed - 1}
        served.rests()


LONG, SHORT = prompt(1, 900), prompt(2, 40)


@pytest.fixture(scope="module", params=[False, True], ids=["without scratch", "with scratch"])
def homeless(request: pytest.FixtureRequest, path: Path) -> Iterator[tuple[Served, bool]]:
    """A model with two streams and one region. Its understudy is there."""
    one = model(path, context=1024, regions=1, resident_prefill_allowed=request.param)
    with serving(one) as served:
        first, second = served.ask(LONG), served.ask(SHORT)
        served.check(second, SHORT)
        served.check(first, LONG)
        assert served.harness.slots["tiny"].understudy is not None
        yield served, request.param


def test_a_stream_without_a_region_is_prefilled_where_it_may_be(homeless: tuple[Served, bool]) -> None:
    served, scratch = homeless
    before = served.passes()
    long, short = [1, *LONG], [1, *SHORT]
    first, second = served.ask(long), served.ask(short)
    served.check(second, short)
    served.check(first, long)
    chunks = 1 if scratch else math.ceil(len(short) / 16)
    passes = {reason: count - before.get(reason, 0) for reason, count in served.passes().items()}
    assert {reason: count for reason, count in passes.items() if count} == {"unhomed": chunks + ANSWER - 1}
    served.rests()
