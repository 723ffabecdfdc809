"""Forges GGUF files byte by byte, so that any field of them can lie."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def string(text: str | bytes, length: int | None = None) -> bytes:
    """A string, with its true length or another."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def array(kind: int, count: int, payload: bytes) -> bytes:
    """The value of an array key."""
    return struct.pack("<IQ", kind, count) + payload


@dataclass
class Key:
    name: str | bytes
    kind: int
    payload: bytes

    def pack(self) -> bytes:
        return string(self.name) + struct.pack("<I", self.kind) + self.payload


@dataclass
class Entry:
    """A tensor's line in the directory; dims are fastest first, as in the file."""

    name: str
    dims: Sequence[int] = (4, 2)
    kind: int = 0
    offset: int = 0
    n_dims: int | None = None

    def pack(self) -> bytes:
        n_dims = len(self.dims) if self.n_dims is None else self.n_dims
        dims = struct.pack(f"<{len(self.dims)}Q", *self.dims)
        return (
            string(self.name) + struct.pack("<I", n_dims) + dims + struct.pack("<IQ", self.kind, self.offset)
        )


def forge(
    keys: Sequence[Key] = (),
    entries: Sequence[Entry] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    key_count: int | None = None,
    entry_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """Return the file's bytes; counts are true unless given."""
    entry_count = len(entries) if entry_count is None else entry_count
    key_count = len(keys) if key_count is None else key_count
    head = magic + struct.pack("<IQQ", version, entry_count, key_count)
    head += b"".join(part.pack() for part in (*keys, *entries))
    return head + bytes(-len(head) % alignment) + data
