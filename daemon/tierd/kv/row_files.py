"""A file of K/V rows of one conversation: whose they are, and the rows.

    a line: tierd rows 3
    a line of JSON: model, origin, owner, row_bytes, positions, used
    the tokens of these positions, four bytes each, the lowest first
    CRC-32 of all that, four bytes, the lowest first
    the rows, store by store, row_bytes[store] bytes for each position
    CRC-32 of the whole file before it

What stands before the rows is the header; it is believed by its own checksum, the rows only as a whole. The
number grows when the format changes, or the bytes of a row in any codec. A file has its name once it is whole
and on the disk: until then it is a draft beside it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tierd.kv.openings import TOKEN_BYTES

Rows = npt.NDArray[np.uint8]

SUFFIX, DRAFT = ".rows", ".draft"

_NAME = b"tierd rows "
_MAGIC = _NAME + b"3\n"
_MOST_JSON = 1 << 16
_CHECKSUM_BYTES = 4  # CRC-32: against damage, not malice, and five times as fast as a digest
_SLICE = 4 << 20  # written or read at once
# What stays free of a disk on which no limit was set.
_FREE_SHARE = 0.05


class RowFileError(Exception):
    """A file is not what it should be; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Whose rows a file holds. tokens: packed. used: when it was last, milliseconds since the epoch.

    owner: of the conversation; see `openings.Packed`.
    """

    model: str
    origin: str
    owner: str = ""
    row_bytes: tuple[int, ...]
    tokens: bytes
    used: int

    @property
    def positions(self) -> int:
        """Rows of each store."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file."""
        return len(self.pack()) + self.positions * sum(self.row_bytes) + _CHECKSUM_BYTES

    def pack(self) -> bytes:
        """Return what the file begins with."""
        what = {
            "model": self.model,
            "origin": self.origin,
            "owner": self.owner,
            "row_bytes": self.row_bytes,
            "positions": self.positions,
            "used": self.used,
        }
        return _with_checksum(_MAGIC + json.dumps(what).encode() + b"\n" + self.tokens)


def read_header(path: Path) -> Header:
    """Return the header of a file, whose rows may yet prove to be damaged. Raises RowFileError, OSError."""
    with _open(path) as file:
        magic = file.read(len(_MAGIC))
        if magic != _MAGIC:
            raise RowFileError("it is of another version" if magic.startswith(_NAME) else "it holds no rows")
        line = file.readline(_MOST_JSON)
        try:
            what: dict[str, Any] = json.loads(line)
            positions, row_bytes = int(what["positions"]), tuple(map(int, what["row_bytes"]))
            header = Header(
                model=str(what["model"]),
                origin=str(what["origin"]),
                owner=str(what["owner"]),
                row_bytes=row_bytes,
                tokens=file.read(max(0, min(positions * TOKEN_BYTES, os.fstat(file.fileno()).st_size))),
                used=int(what["used"]),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise RowFileError("its header is damaged") from None
        whole = magic + line + header.tokens + file.read(_CHECKSUM_BYTES)
        if whole != header.pack() or not positions or not row_bytes or min(row_bytes) < 1:
            raise RowFileError("its header is damaged")
        if os.fstat(file.fileno()).st_size != header.file_bytes:
            raise RowFileError("it has another size than its header says")
    return header


def size_of(header: bytes, rows: tuple[Rows, ...]) -> int:
    """Return the bytes of a file with that packed header and these rows."""
    return len(header) + sum(store.nbytes for store in rows) + _CHECKSUM_BYTES


def write(path: Path, header: bytes, rows: tuple[Rows, ...]) -> None:
    """Write a file, all of it or nothing. Raises OSError.

    header: packed. rows: by row store, shape (positions, row_bytes[store]), contiguous.
    """
    _refuse_full(path.parent, size_of(header, rows))
    draft = path.with_suffix(DRAFT)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(draft, flags, 0o600), "wb") as file:
            checksum = zlib.crc32(header)
            file.write(header)
            for part in _slices(rows):
                checksum = zlib.crc32(part, checksum)
                file.write(part)
            file.write(checksum.to_bytes(_CHECKSUM_BYTES, "little"))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        sync_folder(path.parent)
    except BaseException:
        remove(draft)
        remove(path)
        raise


def read(path: Path, header: bytes, rows: tuple[Rows, ...]) -> None:
    """Fill rows from a file that was written with this packed header. Raises RowFileError, OSError."""
    with _open(path) as file:
        if os.fstat(file.fileno()).st_size != size_of(header, rows):
            raise RowFileError("it has another size than it was written with")
        if file.read(len(header)) != header:
            raise RowFileError("it holds other rows than those that were written")
        checksum = zlib.crc32(header)
        for part in _slices(rows):
            if file.readinto(part) != len(part):
                raise RowFileError("it ends early")
            checksum = zlib.crc32(part, checksum)
        if int.from_bytes(file.read(), "little") != checksum:
            raise RowFileError("its checksum does not fit")


def remove(path: Path) -> str:
    """Remove a file, if it is there; return why that cannot be, "" when it is gone.

    One that stays is in nobody's way: no name is used twice, and the next start tries again.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return f"cannot remove {path}: {error.strerror}"
    return ""


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, and those gone that were removed. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _with_checksum(content: bytes) -> bytes:
    return content + zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "little")


def _open(path: Path) -> BufferedReader:
    """Open a file to be read. Raises RowFileError for what is none: a pipe would be waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RowFileError("it is no file")
    return open(descriptor, "rb")


def _refuse_full(folder: Path, size: int) -> None:
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize - size < _FREE_SHARE * disk.f_blocks * disk.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _slices(rows: tuple[Rows, ...]) -> Iterator[memoryview]:
    for store in rows:
        whole = store.reshape(-1).data
        for start in range(0, len(whole), _SLICE):
            yield whole[start : start + _SLICE]
