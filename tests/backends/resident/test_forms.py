"""Whole tiny models in the forms that GPUs take: matvec, matmul unshuffled, attention of 64 lanes, split."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

import tiny
from backends.resident.conftest import TOKENS, Opener, feed, taken_for_gpu
from tierd.backends.host import ThreadPool
from tierd.backends.resident.assembly import Shader
from tierd.backends.resident.backend import ResidentBackend
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.resident.grid import Grids
from tierd.backends.resident.memory import Shape
from tierd.backends.vkapi import Device
from tierd.core import Batch, Chunk
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS

# As many query heads to a K/V head as models have them.
MANY_HEADS = {"n_embd": 256, "head_size": 32, "heads": 16, "kv_heads": 1, "ff": 512}
SHAPE = Shape(regions=4, positions=1024, max_rows=32, selected=4)
LONG = list(itertools.islice(itertools.cycle(TOKENS), 850))


@dataclass
class Model:
    """A model as a GPU would run it. shaders: of a step of one row and of one of many."""

    executor: ResidentExecutor
    codec: str
    product: str
    shaders: tuple[set[Shader], set[Shader]]


@pytest.fixture(scope="module")
def q4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    path = tmp_path_factory.mktemp("tiny") / "q4.gguf"
    with GGUFFile.open(tiny.write_llama(path, format="Q4_1", context=1024, **MANY_HEADS)) as file:
        yield file


@pytest.fixture(scope="module", params=[("f16", "dot"), ("tq4", "nodot")], ids="-".join)
def model(request: pytest.FixtureRequest, q4: GGUFFile, device: Device, pool: ThreadPool) -> Iterator[Model]:
    codec, product = request.param
    backend = ResidentBackend(device, pool, images=None)
    with taken_for_gpu(device, dot=product == "dot"):
        executor = backend.compile(build_plan(q4), q4, codec=KV_CODECS[codec], shape=SHAPE)
        programs = executor.dispatches(1, 1), executor.dispatches(32, 4)
    one, many = ({dispatch.shader for dispatch in program} for program in programs)
    yield Model(executor, codec, product, (one, many))
    executor.close()


def test_the_forms_are_those_of_gpus(model: Model) -> None:
    one, many = model.shaders
    for shaders, kernel in ((one, "matvec"), (many, "matmul")):
        products = {(each.kernel, each.variant) for each in shaders if each.kernel.startswith("mat")}
        # The classifier's few rows are for matvec in any step.
        assert (kernel, f"q4.{model.product}") in products
        assert products <= {("matvec", f"q4.{model.product}"), (kernel, f"q4.{model.product}")}
        (attention,) = (dict(each.constants) for each in shaders if each.kernel == "attention")
        assert attention["UNITS"] > 0
        assert attention["LANES"] >= 64


def test_bits_are_those_of_a_software_device(model: Model, q4: GGUFFile, opened: Opener) -> None:
    expected = feed(opened(q4, model.codec), TOKENS[:64])
    np.testing.assert_array_equal(feed(model.executor, TOKENS[:64]), expected)


def test_bits_do_not_depend_on_chunks(model: Model) -> None:
    whole = feed(model.executor, TOKENS[:70])
    for step, region in ((1, 1), (7, 3)):
        found = feed(model.executor, TOKENS[:70], region=region, step=step)
        np.testing.assert_array_equal(found, whole)


def test_bits_do_not_depend_on_others(model: Model) -> None:
    tokens = TOKENS[:12]
    alone = feed(model.executor, tokens, step=1)
    for at, token in enumerate(tokens):
        # Three sequences beside it, up to 31 rows of them: one-row forms, few-row forms and tiles.
        others = [Chunk(TOKENS[n : n + 1 + at * n % 11], 0, (n,), ()) for n in (1, 2, 3)]
        others.insert(at % 4, Chunk([token], at, (0,), (0,)))
        np.testing.assert_array_equal(model.executor.run(Batch(tuple(others)))[0], alone[at])


def test_splits_change_no_bit(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row far into its region, whose attention is split, as it is in a step too large for splits."""
    executor, last = model.executor, len(LONG) - 1
    for at in range(0, last, 32):
        executor.run(Batch((Chunk(LONG[at : min(at + 32, last)], at, (0,), ()),)))
    executor.copy_rows(0, 1, last)

    depths: list[int] = []
    groups = Grids.groups

    def noted(grids: Grids, rows: int, selected: int, scored: int, splits: int) -> np.ndarray:
        found = groups(grids, rows, selected, scored, splits)
        depths.append(int(found[:, 2].max()))
        return found

    monkeypatch.setattr(Grids, "groups", noted)
    row = Chunk(LONG[last:], last, (0,), (0,))
    batches = {
        "alone": (row,),
        "among many": (row, Chunk(TOKENS[:30], 0, (2,))),
        "with another": (Chunk(TOKENS[:1], 0, (2,)), Chunk(LONG[last:], last, (1,), (0,)), row),
        "again": (row,),
    }
    alone, *others = [executor.run(Batch(batch)) for batch in batches.values()]
    is_split = dict(zip(batches, (depth > 1 for depth in depths), strict=True))
    assert is_split == {"alone": True, "among many": False, "with another": True, "again": True}
    for logits in others:
        for found in logits:
            np.testing.assert_array_equal(found, alone[0])
