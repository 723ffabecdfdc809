"""Reads GGUF's primitive values from a mapped file, never past its end."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tierd.errors import ModelFileError, UnsupportedModelError

Array = npt.NDArray[Any]
Value = bool | int | float | str | list[str] | Array

_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_STRING = 8
_ARRAY = 9

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def shown(text: str) -> str:
    """Return a string of the file made fit for a one-line message: ASCII, about 100 characters at most."""
    return ascii(text)[1:-1] if len(text) <= 100 else ascii(text[:97])[1:-1] + "..."


class Cursor:
    """A position in the mapping that cannot leave it; `what` says what is being read, for messages."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self.mapping = mapping
        self.size = len(mapping)
        self.position = 0
        self.what = "the header"

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return self.size - self.position

    def fault(self, problem: str) -> ModelFileError:
        """Return the error that says what was being read and what is wrong with it."""
        return ModelFileError(f"{self.path}: {self.what} {problem}")

    def unsupported(self, problem: str) -> UnsupportedModelError:
        """Return the error for something sound that is beyond this reader."""
        return UnsupportedModelError(f"{self.path}: {self.what} {problem}")

    def take(self, count: int) -> int:
        """Step over `count` bytes and return where they begin."""
        if count > self.left:
            raise self.fault(
                f"needs {count} bytes where the file has {self.left} left: it is cut short or lies"
            )
        start = self.position
        self.position += count
        return start

    def u32(self) -> int:
        """Read 4 bytes, unsigned."""
        value: int = _U32.unpack_from(self.mapping, self.take(4))[0]
        return value

    def u64(self) -> int:
        """Read 8 bytes, unsigned."""
        value: int = _U64.unpack_from(self.mapping, self.take(8))[0]
        return value

    def string(self, longest: int | None = None) -> str:
        """Read one string; at most `longest` bytes if that is given."""
        length = self.u64()
        if longest is not None and length > longest:
            raise self.fault(f"has a name of {length} bytes; the most allowed is {longest}")
        start = self.take(length)
        return self.mapping[start : start + length].decode("utf-8", "surrogateescape")

    def strings(self, count: int) -> list[str]:
        """Read `count` strings."""
        if count > self.left // _U64.size:
            raise self.fault(f"claims {count} strings where the file has {self.left} bytes left")
        mapping, size, position = self.mapping, self.size, self.position
        unpack = _U64.unpack_from
        result = []
        # The hot loop of opening a file: no calls but the three that do the work.
        for index in range(count):
            start = position + 8
            position = start + unpack(mapping, position)[0] if start <= size else size + 1
            if position > size:
                raise self.fault(f"is cut short, or lies about a length, at string {index} of {count}")
            result.append(str(mapping[start:position], "utf-8", "surrogateescape"))
        self.position = position
        return result

    def numbers(self, dtype: np.dtype[Any], count: int) -> Array:
        """Read `count` numbers into an array of their own, read-only."""
        if dtype.kind == "b":
            array = self.numbers(np.dtype("<u1"), count)
            if array.size and array.max() > 1:
                raise self.fault("holds a boolean that is neither 0 nor 1")
            return array.view(np.bool_)
        start = self.take(count * dtype.itemsize)
        array = np.frombuffer(self.mapping, dtype, count, start).copy()
        array.flags.writeable = False
        return array

    def value(self) -> Value:
        """Read a metadata value: its type, then the value."""
        kind = self.u32()
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        scalar: bool | int | float = self.numbers(self._scalar_type(kind), 1)[0].item()
        return scalar

    def _array(self) -> Value:
        kind, count = self.u32(), self.u64()
        if kind == _STRING:
            return self.strings(count)
        if kind == _ARRAY:
            raise self.unsupported("is an array of arrays, which no known model uses")
        return self.numbers(self._scalar_type(kind), count)

    def _scalar_type(self, kind: int) -> np.dtype[Any]:
        try:
            return _SCALARS[kind]
        except KeyError:
            raise self.fault(f"has the unknown value type {kind}") from None
