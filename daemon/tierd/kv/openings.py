"""How much of a prompt is kept already: conversations compared by their packed tokens.

Packed, tokens are compared as memory is, so that thousands of conversations are looked through in less than
a millisecond wherever they differ.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tierd.core import Sequence

TOKEN_BYTES = 4  # of a packed token
_TOKEN = np.dtype("<u4")
_Holder = TypeVar("_Holder")


@dataclass(frozen=True, slots=True)
class Packed:
    """Tokens that were packed already, for whoever asks several about the same.

    owner: whose they are, see `core.Request`. What is kept of one owner's is found for no other's.
    """

    content: bytes
    owner: str = ""

    def __len__(self) -> int:
        return len(self.content) // TOKEN_BYTES


Tokens = Ordered[int] | Packed


def pack(tokens: Tokens) -> bytes:
    """Return token ids as bytes, TOKEN_BYTES each, the lowest byte first."""
    if isinstance(tokens, Packed):
        return tokens.content
    packed = array("I", tokens)  # of four bytes wherever CPython runs; takes a third of the time of `struct`
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def owner_of(tokens: Tokens) -> str:
    """Return whose tokens are; those that are not packed are everybody's."""
    return tokens.owner if isinstance(tokens, Packed) else ""


def opening_of(sequence: Sequence, length: int) -> Packed:
    """Return the first `length` tokens of a stream, counted from the end where that is below 0."""
    return Packed(pack(sequence.tokens[:length]), sequence.request.owner)


def unpack(tokens: bytes) -> list[int]:
    """Return the token ids that were packed."""
    return list(struct.unpack(f"<{len(tokens) // TOKEN_BYTES}I", tokens))


def shared_opening(a: bytes, b: bytes) -> int:
    """Return how many leading tokens two packed conversations share."""
    length = min(len(a), len(b)) // TOKEN_BYTES
    differs = np.frombuffer(a, _TOKEN, length) != np.frombuffer(b, _TOKEN, length)
    return int(differs.argmax()) if differs.any() else length


def longest_opening(
    tokens: bytes, held: Iterable[tuple[_Holder, bytes]], minimum: int = 1
) -> tuple[_Holder, int] | None:
    """Return who holds the longest opening of these tokens, and how long it is; None below `minimum`.

    held: holders and their packed tokens. minimum: 1 or more. Of equals the one that holds least beyond it
    wins, then the first.
    """
    best: _Holder | None = None
    most, size = minimum - 1, 0
    same, more = b"", tokens[: minimum * TOKEN_BYTES]
    for holder, content in held:
        if len(more) > most * TOKEN_BYTES and content.startswith(more):
            most = shared_opening(content, tokens)
            best, size = holder, len(content)
            same, more = tokens[: most * TOKEN_BYTES], tokens[: (most + 1) * TOKEN_BYTES]
        elif best is not None and len(content) < size and content.startswith(same):
            best, size = holder, len(content)
    return None if best is None else (best, most)
