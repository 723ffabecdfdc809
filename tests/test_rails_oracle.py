"""Real models on rails, through Kompute on llvmpipe, against the oracle: DESIGN.md, section 8."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kompute import needs_kompute
from reference import oracle
from test_oracle import MODELS, Note, hold_greedy
from tierd.backends.host import HostBackend
from tierd.backends.rails.backend import RailsBackend
from tierd.backends.rails.card import Card
from tierd.backends.rails.executor import RailsExecutor
from tierd.backends.rails.products import Products
from tierd.backends.rails.witness import open_card
from tierd.chat.tokenizer import build_tokenizer
from tierd.core import Batch, Chunk
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS

ROWS = 64
pytestmark = [needs_kompute, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def card() -> Iterator[Card]:
    card = open_card(allow_software=True)
    yield card
    card.close()


@pytest.fixture(scope="module")
def host() -> Iterator[HostBackend]:
    backend = HostBackend(0)
    yield backend
    backend.close()


def _feed(executor: RailsExecutor, tokens: list[int], wanted: list[int]) -> np.ndarray:
    """Feed a sequence of at most ROWS tokens as one chunk and return the logits at the positions wanted."""
    return executor.run(Batch((Chunk(tokens, 0, (0,), tuple(wanted)),))).copy()


def _hold(path: Path, name: str, count: int, card: Card, host: HostBackend, folder: Path, note: Note) -> None:
    """Hold the first rows of a model's oracle to the rule, teacher-forced, each as one prefill."""
    rows = oracle.load(folder, name)["greedy"][:count]
    with GGUFFile.open(path) as file:
        end_ids = build_tokenizer(file).end_ids
        executor = RailsBackend(host, 1).compile(
            build_plan(file), file, codec=KV_CODECS["f16"], pages=1, max_rows=ROWS
        )
    executor.lay(Products(card, executor.groups, executor.host), executor.groups)
    picks = [oracle.greedy_picks(_feed(executor, *oracle.greedy_feed(row)), end_ids) for row in rows]
    assert executor.failure == ""
    assert executor.layers == executor.all_layers
    executor.close()
    note("on", f"rails, {card.name}")
    hold_greedy(rows, picks, note)


def test_greedy_ids(
    smollm2_path: Path, card: Card, host: HostBackend, oracle_dir: Path, record_property: Note
) -> None:
    _hold(smollm2_path, oracle.SMOLLM2, 2, card, host, oracle_dir, record_property)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_all_greedy_ids(
    name: str,
    smollm2_path: Path,
    gemma3_path: Path,
    card: Card,
    host: HostBackend,
    oracle_dir: Path,
    record_property: Note,
) -> None:
    path = {oracle.SMOLLM2: smollm2_path, oracle.GEMMA3: gemma3_path}[name]
    _hold(path, name, 99, card, host, oracle_dir, record_property)
