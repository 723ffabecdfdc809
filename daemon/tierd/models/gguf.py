"""Reads GGUF files: header, metadata, tensor directory; the weights stay on disk, mapped.

The format is GGUF version 2 or 3, little-endian, as its specification describes it
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md):

    magic "GGUF", version u32, tensor count u64, metadata count u64
    metadata   key (string), value type u32, value
    directory  name (string), number of dimensions u32, dimensions u64 (fastest first), type u32, offset u64
    data       begins at the next multiple of `general.alignment`; offsets count from there

A string is its length as u64 and its bytes. A file is not believed: every length, count and offset is
held against the file's size before anything is read or allocated, and every fault names its key or
tensor. All faults are ModelFileError, or UnsupportedModelError for a sound file beyond this reader.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from tierd.errors import ModelError, ModelFileError
from tierd.models.cursor import Cursor, Value, shown
from tierd.models.formats import WEIGHT_FORMATS, WeightFormat

_HEADER = struct.Struct("<4sIQQ")
_MOST_DIMENSIONS = 4
_LONGEST_NAME = 65_535
_LEAST_METADATA_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8
_LARGEST_INTEGER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor's blocks are. shape: numpy's order, rows first; offset: from the file's start."""

    name: str
    format: WeightFormat
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class GGUFFile:
    """An open, validated GGUF file. A context manager.

    metadata: key -> value; strings keep undecodable bytes as surrogate escapes, arrays of strings are
    lists, arrays of numbers are read-only numpy arrays of the type they have in the file.
    tensors: name -> Tensor, in the file's order.
    """

    def __init__(
        self,
        path: Path,
        mapping: mmap.mmap,
        metadata: Mapping[str, Value],
        tensors: Mapping[str, Tensor],
        stamp: tuple[int, int] = (0, 0),
    ) -> None:
        """Hold what was read; use `GGUFFile.open`.

        stamp: the file's inode and when it was last written, in ns.
        """
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._mapping: mmap.mmap | None = mapping
        self._stamp = stamp

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Map the file and read everything but the weights.

        Raises ModelFileError, UnsupportedModelError, and ModelError when there is no such file.
        """
        path = Path(path)
        mapping, stamp = _map(path)
        cursor = Cursor(path, mapping)
        tensor_count, metadata_count = _read_header(cursor)
        metadata = _read_metadata(cursor, metadata_count)
        tensors = _read_tensors(cursor, tensor_count, _alignment(path, metadata))
        return cls(path, mapping, MappingProxyType(metadata), MappingProxyType(tensors), stamp)

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the tensor's blocks, a read-only view of the mapping, shape (nbytes,).

        The view keeps the mapping alive after `close`. Raises ModelFileError if there is no such tensor.
        """
        if self._mapping is None:
            raise ValueError(f"{self.path} is closed")
        tensor = self.tensor(name)
        return np.frombuffer(self._mapping, np.uint8, tensor.nbytes, tensor.offset)

    def identity(self) -> str:
        """Return a digest of the file's size, inode, time of last writing and everything before its weights.

        What was made from a file of the same identity may be taken for made from this one. It is of the file
        as it was opened, whatever lies at the path by now.
        """
        if self._mapping is None:
            raise ValueError(f"{self.path} is closed")
        size = len(self._mapping)
        head = min((tensor.offset for tensor in self.tensors.values()), default=size)
        digest = hashlib.sha256(repr((size, *self._stamp)).encode())
        digest.update(memoryview(self._mapping)[:head])
        return digest.hexdigest()

    def tensor(self, name: str) -> Tensor:
        """Return the tensor called `name`; ModelFileError if there is none."""
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelFileError(f"{self.path}: tensor {name} is missing") from None

    def integer(
        self, key: str, default: int | None = None, *, least: int = 0, most: int = _LARGEST_INTEGER
    ) -> int:
        """Return a whole number within [least, most]; `default` if the key is absent, else an error."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong_type(key, value, "a whole number")
        if not least <= value <= most:
            raise ModelFileError(f"{self.path}: key {key} is {value}, outside {least} to {most}")
        return value

    def number(
        self, key: str, default: float | None = None, *, least: float = -math.inf, most: float = math.inf
    ) -> float:
        """Return a finite number within [least, most]; `default` if the key is absent, else an error."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong_type(key, value, "a number")
        if not math.isfinite(value) or not least <= value <= most:
            raise ModelFileError(f"{self.path}: key {key} is {value}, outside {least} to {most}")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return true or false; `default` if the key is absent, else an error."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong_type(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; `default` if the key is absent, else an error."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong_type(key, value, "a string")
        return value

    def texts(self, key: str) -> list[str]:
        """Return an array of strings; an error if the key is absent."""
        value = self._get(key, None)
        if not isinstance(value, list):
            raise self._wrong_type(key, value, "an array of strings")
        return value

    def integers(self, key: str) -> npt.NDArray[np.int64]:
        """Return an array of whole numbers; an error if the key is absent."""
        value = self._get(key, None)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            raise self._wrong_type(key, value, "an array of whole numbers")
        if value.dtype.kind == "u" and value.size and int(value.max()) > np.iinfo(np.int64).max:
            raise ModelFileError(f"{self.path}: key {key} holds numbers beyond 64 bits")
        return value.astype(np.int64)

    def numbers(self, key: str) -> npt.NDArray[np.float64]:
        """Return an array of finite numbers; an error if the key is absent."""
        value = self._get(key, None)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
            raise self._wrong_type(key, value, "an array of numbers")
        if not np.isfinite(value).all():
            raise ModelFileError(f"{self.path}: key {key} holds a number that is not finite")
        return value.astype(np.float64)

    def close(self) -> None:
        """Let go of the mapping; it is unmapped once no view of it is left. Idempotent."""
        self._mapping = None

    def __enter__(self) -> Self:
        """Return the file itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def _get(self, key: str, default: Value | None) -> Value:
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelFileError(f"{self.path}: key {key} is missing")
        return value

    def _wrong_type(self, key: str, value: Value, wanted: str) -> ModelFileError:
        if isinstance(value, np.ndarray):
            found = f"an array of {value.dtype.name}"
        else:
            found = "an array of strings" if isinstance(value, list) else type(value).__name__
        return ModelFileError(f"{self.path}: key {key} should be {wanted}, the file has {found}")


def _map(path: Path) -> tuple[mmap.mmap, tuple[int, int]]:
    """Return the file's mapping, its inode and when it was last written, in ns."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"{path} is not a regular file; check the path")
            if status.st_size < _HEADER.size:
                raise ModelFileError(f"{path} is not a GGUF file: it is only {status.st_size} bytes long")
            mapping = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
            return mapping, (status.st_ino, status.st_mtime_ns)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ModelError(f"{path} cannot be opened: {error.strerror or error}; check the path") from None
    except ValueError as error:
        raise ModelFileError(f"{path} cannot be opened: {error}") from None


def _read_header(cursor: Cursor) -> tuple[int, int]:
    magic, version, tensors, metadata = _HEADER.unpack_from(cursor.mapping, cursor.take(_HEADER.size))
    if magic != b"GGUF":
        raise ModelFileError(f"{cursor.path} is not a GGUF file: it begins with {magic!r}")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in (2, 3):
            raise cursor.unsupported("is big-endian; convert the file to little-endian")
        raise cursor.unsupported(f"says GGUF version {version}; versions 2 and 3 are read")
    if metadata > cursor.left // _LEAST_METADATA_BYTES:
        raise cursor.fault(f"claims {metadata} metadata keys in a file of {cursor.size} bytes")
    if tensors > cursor.left // _LEAST_TENSOR_BYTES:
        raise cursor.fault(f"claims {tensors} tensors in a file of {cursor.size} bytes")
    return tensors, metadata


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for index in range(count):
        cursor.what = f"metadata key {index + 1} of {count}"
        key = cursor.string(_LONGEST_NAME)
        cursor.what = f"key {shown(key)}"
        if key in metadata:
            raise cursor.fault("stands in the file twice")
        metadata[key] = cursor.value()
    return metadata


def _alignment(path: Path, metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", 32)
    if isinstance(value, bool) or not isinstance(value, int) or value < 8 or value & (value - 1):
        raise ModelFileError(f"{path}: key general.alignment should be a power of two, 8 or more")
    return value


def _read_tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, Tensor]:
    directory: dict[str, Tensor] = {}
    for index in range(count):
        cursor.what = f"tensor {index + 1} of {count}"
        name = cursor.string(_LONGEST_NAME)
        cursor.what = f"tensor {shown(name)}"
        if name in directory:
            raise cursor.fault("stands in the file twice")
        directory[name] = _read_tensor(cursor, name, alignment)

    start = -(-cursor.position // alignment) * alignment
    tensors = {}
    for name, entry in directory.items():
        cursor.what = f"tensor {shown(name)}"
        offset = start + entry.offset
        if offset + entry.nbytes > cursor.size:
            raise cursor.fault(
                f"should end at byte {offset + entry.nbytes}, the file ends at {cursor.size}: "
                "it is cut short or lies"
            )
        tensors[name] = Tensor(name, entry.format, entry.shape, offset, entry.nbytes)
    _refuse_overlaps(cursor, tensors)
    return tensors


def _read_tensor(cursor: Cursor, name: str, alignment: int) -> Tensor:
    dimensions = cursor.u32()
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise cursor.fault(f"has {dimensions} dimensions; 1 to {_MOST_DIMENSIONS} are allowed")
    shape = tuple(cursor.u64() for _ in range(dimensions))[::-1]
    kind, offset = cursor.u32(), cursor.u64()
    if kind not in WEIGHT_FORMATS:
        known = ", ".join(known.name for known in WEIGHT_FORMATS.values())
        raise cursor.unsupported(f"has weight type {kind}, which is not known here; known are {known}")
    weight_format = WEIGHT_FORMATS[kind]
    rows, columns = math.prod(shape[:-1]), shape[-1]
    if rows * columns == 0:
        raise cursor.fault(f"has shape {shape}: it is empty")
    if columns % weight_format.elements:
        raise cursor.fault(
            f"has shape {shape}: rows of {columns} are not whole {weight_format.name} blocks of "
            f"{weight_format.elements}"
        )
    if offset % alignment:
        raise cursor.fault(f"lies at offset {offset}, which is no multiple of the alignment {alignment}")
    return Tensor(name, weight_format, shape, offset, rows * weight_format.row_bytes(columns))


def _refuse_overlaps(cursor: Cursor, tensors: Mapping[str, Tensor]) -> None:
    end, previous = 0, ""
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            cursor.what = f"tensor {shown(tensor.name)}"
            raise cursor.fault(f"overlaps tensor {shown(previous)}")
        end, previous = tensor.offset + tensor.nbytes, tensor.name
