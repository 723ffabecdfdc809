"""The device image: what it holds, and when a file of it is believed."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from hostkernels import calls
from tierd.backends import library
from tierd.backends.resident.image import Image, default_directory, open_image
from tierd.backends.resident.image_layout import ALIGNMENT, ImageLayout
from tierd.backends.resident.ops import Matrix
from tierd.errors import ModelError
from tierd.models.gguf import GGUFFile
from tiny import write_llama

EMBEDDING = Matrix(("token_embd.weight",))
QKV = Matrix(("blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"))
DOWN = Matrix(("blk.0.ffn_down.weight",))
NORM = ("output_norm.weight",)
BIASES = ("blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias")
MATRICES, VECTORS = (EMBEDDING, QKV, DOWN), (NORM, BIASES)


def write_model(path: Path, format: str = "Q5_0", seed: int = 0) -> Path:
    return write_llama(
        path,
        seed=seed,
        n_embd=64,
        layers=1,
        heads=3,
        kv_heads=1,
        head_size=32,
        ff=96,
        format=format,
        biases=True,
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.gguf")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "images"


class Opener:
    """Opens images of a model's file and counts the times that one was packed."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.packed = 0

    def __call__(self, model: Path, matrices: tuple[Matrix, ...] = MATRICES) -> Image:
        with GGUFFile.open(model) as file:
            return self.open(file, matrices)

    def open(self, file: GGUFFile, matrices: tuple[Matrix, ...] = MATRICES) -> Image:
        def progress(done: int, total: int) -> None:
            self.packed += done == total

        return open_image(
            file, matrices, VECTORS, directory=self.directory, pool=calls.pool(2), progress=progress
        )


@pytest.fixture
def opener(cache: Path) -> Opener:
    return Opener(cache)


def expected(model: Path, matrices: tuple[Matrix, ...] = MATRICES) -> bytes:
    """The bytes of an image, put together from the kernels' own packing."""
    image = bytearray()

    def append(part: bytes) -> None:
        image.extend(part + bytes(-len(part) % ALIGNMENT))

    with GGUFFile.open(model) as file:
        for matrix in matrices:
            tensors = [file.tensors[name] for name in matrix.tensors]
            columns = tensors[0].shape[1]
            planes = calls.device_planes(tensors[0].format, sum(t.shape[0] for t in tensors), columns)
            row = 0
            for tensor in tensors:
                raw = file.data(tensor.name).reshape(tensor.shape[0], -1)
                calls.device_pack(tensor.format, raw, columns, planes, row)
                row += tensor.shape[0]
            for plane in planes:
                append(plane.tobytes())
        for vector in VECTORS:
            append(b"".join(file.data(name).tobytes() for name in vector))
    return bytes(image)


@pytest.mark.parametrize("format", ["F32", "F16", "Q8_0", "Q4_1", "Q5_0"])
def test_holds_matrices_and_vectors(tmp_path: Path, opener: Opener, format: str) -> None:
    model = write_model(tmp_path / "model.gguf", format)
    image = opener(model)
    assert image.data.tobytes() == expected(model)
    assert image.size == len(image.data)
    assert image.data.readonly
    assert image.unkept == ""


def test_layout_is_what_the_image_is_read_by(opener: Opener, model: Path) -> None:
    image = opener(model)
    spans = [span for placed in image.layout.matrices.values() for span in placed.planes]
    spans += image.layout.vectors.values()
    end = 0
    for span in spans:
        assert span.offset % ALIGNMENT == 0
        assert end <= span.offset < end + ALIGNMENT
        end = span.offset + span.size
    assert end <= image.size < end + ALIGNMENT
    qkv = image.layout.matrices[QKV]
    assert (qkv.layout, qkv.rows, qkv.columns) == ("q5s", 5 * 32, 64)
    assert [span.size for span in qkv.planes] == [5 * 2 * 32 * size for size in (16, 4, 2)]
    with GGUFFile.open(model) as file:
        for vector, span in image.layout.vectors.items():
            values = np.frombuffer(image.data[span.offset : span.offset + span.size], np.float32)
            np.testing.assert_array_equal(
                values, np.concatenate([file.data(name).view(np.float32) for name in vector])
            )


def test_layout_places_each_once_and_knows_absent_planes(model: Path) -> None:
    with GGUFFile.open(model) as file:
        once = ImageLayout.of(file.tensors, [EMBEDDING, DOWN], [NORM])
        twice = ImageLayout.of(file.tensors, [EMBEDDING, DOWN, EMBEDDING], [NORM, NORM])
        assert twice == once
    floats = write_model(model, "F32")
    with GGUFFile.open(floats) as file:
        placed = ImageLayout.of(file.tensors, [DOWN], []).matrices[DOWN]
    assert [span.size for span in placed.planes] == [2 * 3 * 32 * 128, 0, 0]


@pytest.mark.parametrize(
    "names",
    [
        ("token_embd.weight", "blk.0.attn_q.weight"),  # 301 rows are no multiple of 32
        ("blk.0.attn_q.weight", "blk.0.ffn_down.weight"),  # wider
        ("blk.0.attn_q.weight", "f16.weight"),
    ],
)
def test_layout_refuses_what_cannot_be_joined(model: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    with GGUFFile.open(model) as file, GGUFFile.open(write_model(tmp_path / "f16.gguf", "F16")) as other:
        tensors = {**file.tensors, "f16.weight": other.tensors["blk.0.attn_k.weight"]}
        with pytest.raises(ValueError, match="cannot be joined"):
            ImageLayout.of(tensors, [Matrix(names)], [])


def test_is_packed_once(opener: Opener, model: Path) -> None:
    first, second = opener(model), opener(model)
    assert opener.packed == 1
    assert second.data == first.data
    assert second.data.readonly
    assert second.layout == first.layout


def test_tells_its_progress(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierd.backends.resident.packing._SLICE_BYTES", 1000)
    told: list[tuple[int, int]] = []
    with GGUFFile.open(model) as file:
        image = open_image(
            file,
            MATRICES,
            VECTORS,
            directory=cache,
            pool=calls.pool(2),
            progress=lambda done, total: told.append((done, total)),
        )
    assert image.data.tobytes() == expected(model)
    done = [done for done, _ in told]
    assert done == sorted(done)
    assert len(set(done)) > 10
    assert {total for _, total in told} == {image.size}
    assert told[-1] == (image.size, image.size)


def test_packing_can_be_ended(model: Path, cache: Path) -> None:
    class EndedError(Exception):
        pass

    def progress(done: int, total: int) -> NoReturn:
        raise EndedError

    with GGUFFile.open(model) as file, pytest.raises(EndedError):
        open_image(file, MATRICES, VECTORS, directory=cache, pool=calls.pool(2), progress=progress)
    assert list(cache.iterdir()) == []


def _flip(at: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [*map(_flip, (0, 8, 15, 16, 47, 48, 4095)), lambda content: content[:-1], lambda content: content + b"\0",
     lambda content: content[:20], lambda content: b""],
)  # fmt: skip
def test_a_damaged_file_is_made_anew(opener: Opener, model: Path, cache: Path, damage: Any) -> None:
    opener(model)
    (path,) = cache.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert opener(model).data.tobytes() == expected(model)
    assert opener.packed == 2
    assert opener(model).data.tobytes() == expected(model)
    assert opener.packed == 2
    assert list(cache.iterdir()) == [path]


def test_another_models_file_gets_another_image(
    opener: Opener, model: Path, tmp_path: Path, cache: Path
) -> None:
    opener(model)
    other = write_model(tmp_path / "other.gguf", seed=1)
    assert opener(other).data.tobytes() == expected(other)
    assert opener(model).data.tobytes() == expected(model)
    assert opener.packed == 2
    assert len(list(cache.iterdir())) == 2


def test_a_changed_models_file_takes_the_old_image_away(opener: Opener, model: Path, cache: Path) -> None:
    old = opener(model)
    held = expected(model)
    write_model(model, seed=1)
    assert opener(model).data.tobytes() == expected(model) != held
    assert old.data.tobytes() == held
    assert len(list(cache.iterdir())) == 1


def test_a_file_that_is_replaced_while_open_is_not_taken_for_its_successor(
    opener: Opener, model: Path, tmp_path: Path
) -> None:
    successor = write_model(tmp_path / "successor.gguf", seed=1)
    status = model.stat()
    os.utime(successor, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert successor.stat().st_size == status.st_size
    first = expected(model)
    with GGUFFile.open(model) as file:
        successor.replace(model)
        assert opener.open(file).data.tobytes() == first
    assert opener(model).data.tobytes() == expected(model) != first


def test_other_matrices_make_another_image(opener: Opener, model: Path) -> None:
    opener(model)
    assert opener(model, (EMBEDDING, DOWN)).data.tobytes() == expected(model, (EMBEDDING, DOWN))
    assert opener(model, (DOWN, EMBEDDING)).data.tobytes() == expected(model, (DOWN, EMBEDDING))
    assert opener.packed == 3


def test_another_version_of_the_layouts_makes_another_image(
    opener: Opener, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opener(model)
    ffi, lib = library.load()

    class Newer:
        HK_DEVICE_LAYOUT_VERSION = lib.HK_DEVICE_LAYOUT_VERSION + 1

        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

    monkeypatch.setattr(library, "load", lambda: (ffi, Newer()))
    opener(model)
    assert opener.packed == 2


def _refuse(code: int) -> Callable[..., NoReturn]:
    def refuse(*arguments: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return refuse


def test_lies_in_memory_without_a_folder(model: Path) -> None:
    image = Opener(None)(model)
    assert image.data.tobytes() == expected(model)
    assert image.data.readonly
    assert image.unkept == "no folder is set"


def test_lies_in_memory_where_the_folder_cannot_be_made(model: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    image = Opener(tmp_path / "cache" / "images")(model)
    assert image.data.tobytes() == expected(model)
    assert image.unkept == f"{tmp_path}/cache/images: Not a directory"


@pytest.mark.parametrize(
    ("call", "code"),
    [("posix_fallocate", errno.ENOSPC), ("fsync", errno.EIO), ("open", errno.EROFS)],
)
def test_lies_in_memory_where_the_disk_refuses(
    opener: Opener, model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    with GGUFFile.open(model) as file:
        monkeypatch.setattr(os, call, _refuse(code))
        image = opener.open(file)
        monkeypatch.undo()
    assert image.data.tobytes() == expected(model)
    assert image.unkept == f"{cache}: {os.strerror(code)}"
    assert list(cache.iterdir()) == []


def test_no_room_anywhere_is_an_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*arguments: object) -> NoReturn:
        raise MemoryError

    with GGUFFile.open(model) as file:
        monkeypatch.setattr(np, "zeros", no_memory)
        with pytest.raises(ModelError, match="no memory for its image of"):
            Opener(None).open(file)


def test_makers_do_not_disturb_each_other(model: Path, cache: Path) -> None:
    start = threading.Barrier(4)
    images: list[bytes] = []

    def make() -> None:
        start.wait()
        images.append(Opener(cache)(model).data.tobytes())

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert images == [expected(model)] * 4
    assert [path.suffix for path in cache.iterdir()] == [".image"]


def test_a_draft_in_the_making_stays(model: Path, cache: Path) -> None:
    def progress(done: int, total: int) -> None:
        if done == total:
            Opener(cache)(model, (DOWN,))

    with GGUFFile.open(model) as file:
        image = open_image(file, MATRICES, VECTORS, directory=cache, pool=calls.pool(2), progress=progress)
    assert image.unkept == ""
    assert image.data.tobytes() == expected(model)


def test_drafts_go_once_nobody_makes_them(opener: Opener, model: Path, cache: Path) -> None:
    opener(model)
    (path,) = cache.iterdir()
    abandoned, locked, fresh = (
        path.with_suffix(f".{name}.draft") for name in ("abandoned", "locked", "fresh")
    )
    abandoned.write_bytes(b"half")
    locked.write_bytes(b"half")
    fresh.write_bytes(b"")
    path.unlink()
    with locked.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        opener(model)
    assert {*cache.iterdir()} == {path, locked, fresh}


def test_fills_views_with_any_range(opener: Opener, model: Path) -> None:
    image = opener(model)
    content = image.data.tobytes()
    for offset, size in [(0, image.size), (256, 512), (1, 9001), (image.size, 0), (image.size - 1, 1)]:
        staging = bytearray(size + 3)
        image.fill(memoryview(staging), offset, size)
        assert staging == content[offset : offset + size] + bytes(3)


def test_fills_views_with_nothing_else(opener: Opener, model: Path) -> None:
    image = opener(model)
    staging = memoryview(bytearray(image.size))
    for offset, size in [(-1, 1), (0, -1), (1, image.size), (image.size + 1, 0)]:
        with pytest.raises(ValueError, match="cannot fill"):
            image.fill(staging, offset, size)
    with pytest.raises(ValueError, match="cannot fill"):
        image.fill(staging[:9], 0, 10)
    with pytest.raises(BufferError):
        image.fill(staging.toreadonly(), 0, 1)


def test_a_closed_image_keeps_the_views_that_are_out(opener: Opener, model: Path) -> None:
    image = opener(model)
    view = image.data
    image.close()
    image.close()
    assert view.tobytes() == expected(model)
    with pytest.raises(ValueError, match="cannot fill"):
        image.fill(memoryview(bytearray(1)), 0, 1)


def test_default_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    assert default_directory() == Path("/some/cache/tierd/images")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_directory() == Path("/home/somebody/.cache/tierd/images")
