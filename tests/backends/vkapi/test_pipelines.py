"""Pipelines: made once, kept on disk between runs, and made again from nothing when the file is no good."""

from __future__ import annotations

import dataclasses
import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.vkapi.devices import NVIDIA
from backends.vkapi.words import PUSH_BYTES
from tierd.backends.vkapi import Device
from tierd.backends.vkapi.pipelines import cache_key
from tierd.errors import DeviceError

Open = Callable[..., Device]


def test_a_pipeline_is_compiled_once_for_the_same_shader_and_constants(
    open_device: Open, scaled_add: bytes
) -> None:
    device = open_device()
    first = device.pipeline(scaled_add, PUSH_BYTES, {3: 2, 8: 1.0})
    before = device.calls
    assert device.pipeline(scaled_add, PUSH_BYTES, {3: 2, 8: 1.0}) is first
    assert device.calls == before
    assert device.pipeline(scaled_add, PUSH_BYTES, {3: 2, 8: 2.0}) is not first


def initial_bytes(device: Device, directory: Path) -> int:
    """Open a cache as a device does, and return with how many bytes it starts."""
    from tierd.backends.vkapi.pipelines import Pipelines

    given: list[int] = []
    create = device.vk.create

    def watched(name: str, ctype: str, *args: object) -> object:
        if name == "vkCreatePipelineCache":
            given.append(args[1].initialDataSize)  # type: ignore[attr-defined]
        return create(name, ctype, *args)

    device.vk.create = watched  # type: ignore[method-assign, assignment]
    Pipelines(device.vk, device.facts, directory).close()
    return given[0]


def cache_file(directory: Path) -> Path:
    (file,) = directory.iterdir()
    return file


def test_the_cache_is_written_and_read_back(open_device: Open, scaled_add: bytes, tmp_path: Path) -> None:
    directory = tmp_path / "new" / "cache"
    device = open_device(pipeline_cache=directory)
    device.pipeline(scaled_add, PUSH_BYTES)
    device.save_pipelines()
    written = cache_file(directory).read_bytes()
    assert written.startswith(b"tierd pipelines 1\n")
    stamp = cache_file(directory).stat().st_mtime_ns
    device.close()
    assert cache_file(directory).stat().st_mtime_ns == stamp  # nothing new, nothing written
    again = open_device(pipeline_cache=directory)
    assert 0 < initial_bytes(again, directory) < len(written)
    again.pipeline(scaled_add, PUSH_BYTES)


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "unreadable"])
def test_a_damaged_cache_is_not_shown_to_the_driver(
    open_device: Open, scaled_add: bytes, tmp_path: Path, damage: str
) -> None:
    device = open_device(pipeline_cache=tmp_path)
    device.pipeline(scaled_add, PUSH_BYTES)
    device.close()
    file = cache_file(tmp_path)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    if damage == "unreadable":
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes({"cut": content[:-9], "flipped": content, "emptied": b""}[damage])
    again = open_device(pipeline_cache=tmp_path)
    assert initial_bytes(again, tmp_path) == 0
    again.pipeline(scaled_add, PUSH_BYTES)


def test_a_cache_that_cannot_be_written_is_no_error(
    open_device: Open, scaled_add: bytes, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    device = open_device(pipeline_cache=tmp_path / "file")
    device.pipeline(scaled_add, PUSH_BYTES)
    device.save_pipelines()
    assert (tmp_path / "file").read_text() == "in the way"


def test_what_a_killed_process_has_begun_is_removed(
    open_device: Open, scaled_add: bytes, tmp_path: Path
) -> None:
    (tmp_path / "abandoned.draft").write_bytes(b"half of a")
    with (tmp_path / "another's.draft").open("wb") as draft:
        fcntl.flock(draft, fcntl.LOCK_EX)
        device = open_device(pipeline_cache=tmp_path)
        device.pipeline(scaled_add, PUSH_BYTES)
        device.save_pipelines()
        assert sorted(path.suffix for path in tmp_path.iterdir()) == [".draft", ".pipelines"]
        assert (tmp_path / "another's.draft").exists()


def test_a_cache_belongs_to_one_device_and_driver() -> None:
    others = [
        dataclasses.replace(NVIDIA, **{field: "another"})  # type: ignore[arg-type]
        for field in ("uuid", "driver_uuid", "cache_uuid", "driver")
    ]
    assert len({cache_key(facts) for facts in [NVIDIA, *others]}) == 5


@pytest.mark.parametrize("spirv", [b"", b"\x03\x02\x23\x07\x00"])
def test_what_is_no_spirv_is_refused(open_device: Open, spirv: bytes) -> None:
    with pytest.raises(DeviceError, match=f"a shader of {len(spirv)} bytes is no SPIR-V"):
        open_device().pipeline(spirv, PUSH_BYTES)


def test_push_constants_have_a_limit(open_device: Open, scaled_add: bytes) -> None:
    device = open_device()
    for count in (0, device.facts.limits.push + 4):
        with pytest.raises(DeviceError, match=f"^{count} bytes of push constants"):
            device.pipeline(scaled_add, count)
