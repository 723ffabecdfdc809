from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from gpu import host_sees
from tierd.backends.host import ThreadPool
from tierd.backends.resident.backend import ResidentBackend
from tierd.backends.resident.executor import ResidentExecutor
from tierd.backends.resident.memory import ModelMemory, Shape
from tierd.backends.vkapi import Buffer, Device, Part, Role
from tierd.core import Batch, Chunk
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS

SMALL = Shape(regions=8, positions=256, max_rows=32, selected=4)
TOKENS = [int(token) for token in np.random.default_rng(0).integers(0, 300, 150)]
# Sizes that all formats and codecs can have.
WIDE = {"n_embd": 256, "head_size": 64, "heads": 4, "kv_heads": 2, "ff": 512}


def feed(
    executor: ResidentExecutor, tokens: Sequence[int], *, region: int = 0, start: int = 0, step: int = 32
) -> np.ndarray:
    """Feed one sequence in chunks; return the logits of all its rows."""
    rows = []
    for at in range(0, len(tokens), step):
        part = tokens[at : at + step]
        rows.append(executor.run(Batch((Chunk(part, start + at, (region,), tuple(range(len(part)))),))))
    return np.concatenate(rows)


@contextmanager
def taken_for_gpu(device: Device, *, dot: bool) -> Iterator[None]:
    """Let what is compiled meanwhile be what a GPU would run. dot: one that multiplies bytes fast."""
    facts = device.facts
    fast = {"shaderIntegerDotProduct", "integerDotProduct4x8BitPackedSignedAccelerated"}
    features = facts.features | fast if dot else facts.features - fast
    device.facts = replace(facts, type="discrete", features=features)
    try:
        yield
    finally:
        device.facts = facts


@pytest.fixture(scope="session")
def pool() -> Iterator[ThreadPool]:
    pool = ThreadPool(2)
    yield pool
    pool.close()


def _device(tmp_path_factory: pytest.TempPathFactory, *, hide_host_visible: bool) -> Iterator[Device]:
    """A device that the validation layer watches, barriers too; that it found nothing is checked last."""
    device = Device.open(
        allow_software=True,
        validate="sync",
        hide_host_visible=hide_host_visible,
        pipeline_cache=tmp_path_factory.mktemp("pipelines"),
    )
    assert host_sees(device) != hide_host_visible
    yield device
    device.close()
    assert device.messages == []


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """One whose memory the host does not see, so that all goes through staging buffers."""
    yield from _device(tmp_path_factory, hide_host_visible=True)


@pytest.fixture(scope="session")
def mapped_device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """One whose memory the host writes to directly."""
    yield from _device(tmp_path_factory, hide_host_visible=False)


@dataclass
class Opener:
    """Puts models on a device; they are closed with their test."""

    backend: ResidentBackend
    opened: list[ResidentExecutor] = field(default_factory=list)

    def __call__(self, file: GGUFFile, codec: str = "f16", shape: Shape = SMALL) -> ResidentExecutor:
        plan = build_plan(file)
        executor = self.backend.compile(plan, file, codec=KV_CODECS[codec], shape=shape)
        self.opened.append(executor)
        return executor


def _spoiled(memory: ModelMemory, size: int, role: Role) -> Buffer:
    """Return a buffer as `ModelMemory.buffer` does, whose bytes on the device were used before."""
    buffer = memory._device.buffer(size, role)
    memory._buffers.append(buffer)

    def fill(view: memoryview, offset: int, size: int) -> None:
        view[:size] = b"\xff" * size

    if role is Role.DEVICE:
        memory._device.upload([Part(buffer, 0, size)], fill)
    return buffer


def _opener(device: Device, pool: ThreadPool, images: Path) -> Iterator[Opener]:
    opener = Opener(ResidentBackend(device, pool, images=images))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelMemory, "buffer", _spoiled)
        yield opener
    for executor in opener.opened:
        executor.close()


@pytest.fixture
def opened(device: Device, pool: ThreadPool, tmp_path: Path) -> Iterator[Opener]:
    yield from _opener(device, pool, tmp_path / "images")


@pytest.fixture
def opened_mapped(mapped_device: Device, pool: ThreadPool, tmp_path: Path) -> Iterator[Opener]:
    yield from _opener(mapped_device, pool, tmp_path / "images")
