"""Takes a sound GGUF file apart: into parts that can be forged anew, and into fields that can be spoilt."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from forged import ARRAY, BOOL, STRING, Entry, Key, forge

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, BOOL: 1, 10: 8, 11: 8, 12: 8}


@dataclass(frozen=True)
class Field:
    """Where a number or a text stands in the file. role: what it says; owner: its key or tensor."""

    role: str
    owner: str
    start: int
    size: int


@dataclass
class Parts:
    """A file's keys, tensors and data; fields: of the bytes as they were read."""

    content: bytes
    keys: list[Key] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    fields: list[Field] = field(default_factory=list)
    head: int = 0
    data: bytes = b""

    def forge(self, keys: list[Key] | None = None, entries: list[Entry] | None = None) -> bytes:
        """Return a file of these keys and tensors, its counts and padding true."""
        return forge(
            self.keys if keys is None else keys, self.entries if entries is None else entries, self.data
        )


def take_apart(content: bytes) -> Parts:
    """Read a file that is sound and whose alignment is 32."""
    walk = _Walk(content)
    for name, size in (("magic", 4), ("version", 4), ("tensor count", 8), ("key count", 8)):
        walk.number(name, "the header", size)
    _, entries, keys = struct.unpack_from("<IQQ", content, 4)
    for _ in range(keys):
        walk.key()
    for _ in range(entries):
        walk.entry()
    walk.parts.head = walk.at
    walk.parts.data = content[walk.at + -walk.at % 32 :]
    return walk.parts


class _Walk:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0
        self.parts = Parts(content)

    def number(self, role: str, owner: str, size: int) -> int:
        start = self.at
        self.parts.fields.append(Field(role, owner, start, size))
        self.at += size
        return int.from_bytes(self.content[start : self.at], "little")

    def text(self, role: str, owner: str) -> str:
        length = self.number(f"length of {role}", owner, 8)
        raw = self.content[self.at : self.at + length]
        if length:
            self.parts.fields.append(Field(role, owner, self.at, length))
        self.at += length
        return raw.decode()

    def key(self) -> None:
        name = self.text("key name", "")
        kind = self.number("value type", name, 4)
        start = self.at
        if kind == ARRAY:
            kind_of_items, count = self.number("item type", name, 4), self.number("item count", name, 8)
            if kind_of_items == STRING:
                for _ in range(count):
                    self.text("item", name)
            else:
                self.number("items", name, count * _SIZES[kind_of_items])
        elif kind == STRING:
            self.text("text", name)
        else:
            self.number("value", name, _SIZES[kind])
        self.parts.keys.append(Key(name, kind, self.content[start : self.at]))

    def entry(self) -> None:
        name = self.text("tensor name", "")
        dims = [
            self.number("dimension", name, 8) for _ in range(self.number("number of dimensions", name, 4))
        ]
        kind, offset = self.number("format", name, 4), self.number("offset", name, 8)
        self.parts.entries.append(Entry(name, dims, kind, offset))
