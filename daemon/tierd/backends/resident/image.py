"""The device image: a model's weights as the device reads them, packed once and kept on disk.

A file of the cache is a page of header and then what an `ImageLayout` places:

    magic, 8 bytes; size of the rest, u64; digest, 32 bytes; zeros up to 4096 bytes

The digest is of the model file's identity, the version of the layouts and every place in the image. A file
counts only if its header and its size are exactly the expected ones: one that is stale, cut short or damaged
there is made anew. It gets its name once it is whole and on the disk, so whoever finds it may use it; of
several processes that make it at once each uses its own, and the last one's stays. Where there is no room for
a file, the image lies in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tierd.backends import library
from tierd.backends.host import ThreadPool
from tierd.backends.resident.image_layout import ImageLayout, Vector
from tierd.backends.resident.ops import Matrix
from tierd.backends.resident.packing import pack
from tierd.errors import ModelError
from tierd.models.gguf import GGUFFile
from tierd.progress import Progress

_HEADER = struct.Struct("<8sQ32s")
_HEADER_BYTES = 4096
_MAGIC = b"tierdIMG"
_IMAGE, _DRAFT = ".image", ".draft"


def default_directory() -> Path:
    """Return where images are kept unless the settings say otherwise."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_home) / "tierd" / "images"


class Image:
    """A model's weights, ready to be copied to a device.

    layout: what is where in `data`. data: read-only, layout.size bytes. unkept: why the image is not kept on
    disk, "" if it is.
    """

    def __init__(self, layout: ImageLayout, data: memoryview, pool: ThreadPool, unkept: str) -> None:
        """Use `open_image`."""
        self.layout = layout
        self.data = data
        self.unkept = unkept
        self._pool = pool

    @property
    def size(self) -> int:
        """Bytes of the image."""
        return self.layout.size

    def fill(self, view: memoryview, offset: int, size: int) -> None:
        """Copy `size` bytes from `offset` on to the start of a writable view, on all threads.

        Raises ValueError when they do not lie in the image or do not fit into the view.
        """
        held = len(self.data)
        if offset < 0 or size < 0 or offset + size > held or size > view.nbytes:
            raise ValueError(
                f"bytes {offset} to {offset + size} of {held} cannot fill a view of {view.nbytes}"
            )
        ffi, lib = library.load()
        source = ffi.from_buffer("char[]", self.data)
        target = ffi.from_buffer("char[]", view, require_writable=True)
        with self._pool.lock:
            lib.hk_copy(self._pool.handle, target, source + offset, size)

    def close(self) -> None:
        """Let go of the bytes, which are unmapped once no view of them is left. Idempotent."""
        self.data = memoryview(b"")


def open_image(
    file: GGUFFile,
    matrices: Iterable[Matrix],
    vectors: Iterable[Vector],
    *,
    directory: Path | None,
    pool: ThreadPool,
    progress: Progress | None = None,
) -> Image:
    """Return the image of a model's matrices and vectors, from `directory` or packed now and kept there.

    directory: made if need be; None keeps nothing. progress: called while it is packed, with the bytes that
    are done and their total; what it raises ends the packing and leaves nothing behind.
    Raises ModelError when there is neither room on disk nor memory.
    """
    layout = ImageLayout.of(file.tensors, matrices, vectors)
    header = _header(file, layout)

    def write(target: npt.NDArray[np.uint8]) -> None:
        pack(file, layout, target, pool, progress)

    unkept = "no folder is set"
    if directory is not None:
        prefix = _prefix(file.path)
        path = directory / f"{prefix}{hashlib.sha256(header).hexdigest()[:16]}{_IMAGE}"
        try:
            data = _read(path, header, layout.size) or _keep(path, prefix, header, layout.size, write)
            return Image(layout, data, pool, "")
        except _DiskError as error:
            unkept = f"{directory}: {error}"
    try:
        memory = np.zeros(layout.size, np.uint8)
    except MemoryError:
        raise ModelError(f"{file.path}: no memory for its image of {layout.size} bytes") from None
    write(memory)
    return Image(layout, memory.data.toreadonly(), pool, unkept)


class _DiskError(Exception):
    """An image cannot be kept; says why."""


@contextlib.contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _DiskError(error.strerror or str(error)) from None


def _header(file: GGUFFile, layout: ImageLayout) -> bytes:
    """Return the only header under which a file is this image."""
    _, lib = library.load()
    made_from = f"{file.identity()}\n{lib.HK_DEVICE_LAYOUT_VERSION}\n{layout.description()}"
    digest = hashlib.sha256(made_from.encode(errors="surrogateescape")).digest()
    return _HEADER.pack(_MAGIC, layout.size, digest).ljust(_HEADER_BYTES, b"\0")


def _prefix(model: Path) -> str:
    """Return how the names of all images of a model file begin."""
    path = os.fsencode(os.path.realpath(model))
    return f"{model.stem[:40]}-{hashlib.sha256(path).hexdigest()[:16]}-"


def _read(path: Path, header: bytes, size: int) -> memoryview | None:
    """Return the bytes behind the header of a file that is just what is expected, else None."""
    try:
        with path.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size != len(header) + size or stream.read(len(header)) != header:
                return None
            return _mapped(stream.fileno(), len(header))
    except OSError:
        return None


def _mapped(descriptor: int, start: int) -> memoryview:
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))[start:]


def _keep(
    path: Path, prefix: str, header: bytes, size: int, write: Callable[[npt.NDArray[np.uint8]], None]
) -> memoryview:
    """Make an image in place of all others of its model; return what `write` wrote.

    Raises _DiskError where the folder cannot be written or has no room.
    """
    with contextlib.ExitStack() as stack:
        with _disk():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove(path.parent, prefix)
            draft, descriptor = stack.enter_context(_draft(path))
            os.posix_fallocate(descriptor, 0, len(header) + size)  # else a full disk would be a SIGBUS
            mapping = mmap.mmap(descriptor, len(header) + size)
        mapping[: len(header)] = header
        write(np.frombuffer(mapping, np.uint8, size, len(header)))
        with _disk():
            os.fsync(descriptor)
            data = _mapped(descriptor, len(header))
            draft.replace(path)
        return data


@contextlib.contextmanager
def _draft(path: Path) -> Iterator[tuple[Path, int]]:
    """Make a file beside `path`, locked while it is made; it is removed in the end unless it was renamed."""
    draft = path.with_name(f"{path.stem}.{secrets.token_hex(8)}{_DRAFT}")
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield draft, descriptor
    finally:
        draft.unlink(missing_ok=True)
        os.close(descriptor)


def _remove(directory: Path, prefix: str) -> None:
    """Remove a model's images, and drafts that nobody is making any more."""
    for path in directory.iterdir():
        if path.name.startswith(prefix) and (path.suffix == _IMAGE or _is_abandoned(path)):
            path.unlink(missing_ok=True)


def _is_abandoned(path: Path) -> bool:
    """Whether a path is a draft whose maker is gone. One that is empty may be about to be locked."""
    try:
        if path.suffix != _DRAFT or path.stat().st_size == 0:
            return False
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:
        return False
