"""Warm equals cold on a device: conversations say the same ids alone, cached, and in each other's company.

See `test_conversations`. There are more of them than regions, so that rows go to the bank between turns.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from itertools import chain, zip_longest
from pathlib import Path
from random import Random

import pytest

from engine.conversing import MODEL, Talk, conversing
from engine.device_live import staged
from tierd.settings import (
    EngineSettings,
    GPUSettings,
    KVSettings,
    ModelSettings,
    QueueSettings,
    ServerSettings,
    Settings,
)
from tiny import write_llama

STREAMS = 9
Ids = tuple[int, ...]


def talks(count: int, turns: int) -> list[Talk[Ids]]:
    """Every third has an opening in common with others; every other one draws at random."""
    dice = Random(7)

    def some(most: int) -> Ids:
        return tuple(dice.choices(range(300), k=dice.randint(1, most)))

    opening = tuple(dice.choices(range(300), k=21))
    return [
        Talk(
            questions=(opening[: 21 * (n % 3 == 0)] + some(20), *(some(9) for _ in range(turns - 1))),
            tokens=5 + n % 8,
            temperature=n % 2 * 0.8,
            seed=100 * n,
            ignore_eos=True,
        )
        for n in range(count)
    ]


def prompts(questions: Ordered[Ids], answers: Ordered[Ordered[int]]) -> list[int]:
    return [*chain.from_iterable(chain.from_iterable(zip_longest(questions, answers, fillvalue=())))]


@pytest.mark.parametrize(("count", "turns"), [(12, 2), pytest.param(50, 3, marks=pytest.mark.long)])
def test_conversations_on_a_device(
    count: int, turns: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    path = write_llama(tmp_path / "tiny.gguf", head_size=32, ff=96)
    model = ModelSettings(id=MODEL, path=path, context=128, streams=STREAMS)
    settings = Settings(
        server=ServerSettings(reader_backlog=65536),  # nobody reads
        engine=EngineSettings(threads=1, chunk_rows=16),
        queue=QueueSettings(capacity=count, timeout_s=0),
        kv=KVSettings(memory_mb=16),
        gpu=GPUSettings(mode="resident", require="resident", allow_software=True),
        models=(model,),
    )
    asked = talks(count, turns)
    with (
        staged(settings, bank=1 << 24) as stage,
        conversing(model, stage.tier.open, settings, **stage.parts) as house,
    ):
        alone = house.hold(asked, prompts, at_once=1, forgets=True)
        cached = house.hold(asked, prompts, at_once=1)
        house.engine.flush().result()
        together = house.hold(asked, prompts, at_once=count)
        assert not house.engine.snapshot.models[MODEL].passes
        assert stage.bank.entries
    record_property("conversations", count)
    record_property("turns", turns * count)
    record_property("ids", sum(len(answer.ids) for talk in alone for answer in talk))
    known = [sum(answer.cached for talk in some for answer in talk) for some in (alone, cached, together)]
    for name, positions in zip(("alone", "with the prefix cache", "beside eight others"), known, strict=True):
        record_property(f"{name}, positions cached", positions)
    assert cached == alone
    assert together == alone
    assert known[0] == 0 < min(known[1:])
