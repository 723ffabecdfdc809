"""A model that leaves a device and comes back: its weights stay mapped, whatever becomes of its file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from backends.resident.conftest import TOKENS, feed
from tierd.backends.absent import AbsentExecutor
from tierd.backends.host import ThreadPool
from tierd.backends.resident.backend import Prepared, ResidentBackend, absent
from tierd.backends.resident.memory import Shape
from tierd.backends.vkapi import Device
from tierd.errors import UnsupportedModelError
from tierd.models import GGUFFile, build_plan
from tierd.models.formats import KV_CODECS
from tiny import write_llama

SHAPE = Shape(regions=2, positions=128, max_rows=32, selected=2)
OTHER = Shape(regions=3, positions=64, max_rows=16, selected=1)


@pytest.fixture
def backend(device: Device, pool: ThreadPool, tmp_path: Path) -> ResidentBackend:
    return ResidentBackend(device, pool, images=tmp_path / "images")


def prepare(backend: ResidentBackend, path: Path, codec: str = "tq4") -> Prepared:
    with GGUFFile.open(path) as file:
        return backend.prepare(build_plan(file), file, KV_CODECS[codec])


def test_it_computes_the_same_each_time_it_is_there(backend: ResidentBackend, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", head_size=32, ff=96)
    prepared = prepare(backend, path)
    path.write_bytes(b"another")
    free = backend.device.used
    logits = []
    for _ in range(2):
        executor = backend.arm(prepared, SHAPE)
        logits.append(feed(executor, TOKENS[:40]))
        executor.close()
        assert backend.device.used == free
    np.testing.assert_array_equal(logits[0], logits[1])
    prepared.close()
    prepared.close()
    with pytest.raises(ValueError, match="cannot fill a view"):
        backend.arm(prepared, SHAPE)
    assert backend.device.used == free


def test_its_unusual_steps_are_recorded_as_they_are_wanted_when_it_is_back(
    backend: ResidentBackend, tmp_path: Path
) -> None:
    prepared = prepare(backend, write_llama(tmp_path / "m.gguf", head_size=32, ff=96))
    calls = []
    for shape in (SHAPE, SHAPE, OTHER):
        before = backend.device.calls
        executor = backend.arm(prepared, shape)
        calls.append(backend.device.calls - before)
        executor.close()
    first, again, reshaped = calls
    assert again < first // 2
    assert reshaped > again
    prepared.close()


@pytest.mark.parametrize("codec", ["f16", "q8_0", "tq4"])
def test_what_it_would_have_is_known_before(backend: ResidentBackend, tmp_path: Path, codec: str) -> None:
    prepared = prepare(backend, write_llama(tmp_path / "m.gguf", head_size=32, ff=96), codec)
    for shape in (SHAPE, OTHER):
        executor = backend.arm(prepared, shape)
        assert vars(absent(prepared, shape)) == vars(AbsentExecutor.of(executor))
        executor.close()
    prepared.close()


def test_another_device_may_lack_what_it_needs(backend: ResidentBackend, tmp_path: Path) -> None:
    prepared = prepare(backend, write_llama(tmp_path / "m.gguf", head_size=32, ff=96))
    facts = backend.device.facts
    assert prepared.demand.on(facts) is prepared.demand
    wide = dataclasses.replace(facts, type="discrete")
    assert prepared.demand.on(wide).facts is wide
    assert prepared.demand.facts is facts
    narrow = dataclasses.replace(facts, limits=dataclasses.replace(facts.limits, groups=(1, 65535, 65535)))
    with pytest.raises(UnsupportedModelError, match="rows, and llvmpipe"):
        prepared.demand.on(narrow)
    prepared.close()
