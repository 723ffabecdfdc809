"""The blocks of content that an answer is made of."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from tierd.chat.reply import Arguments, Called, Piece, Said, Thought
from tierd.http.messages.growing_input import whole_input
from tierd.http.messages.shapes import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock


class Signature:
    """What a thought is signed with here: a digest, so that clients that ask for a signature have one.

    It proves nothing; thoughts that come back are taken whatever their signature.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, text: str) -> None:
        """Take in more of the thought."""
        self._digest.update(text.encode())

    def __str__(self) -> str:
        return base64.b64encode(self._digest.digest()).decode()


class Blocks:
    """Which block each piece of an answer belongs to: neighbours of a kind share one, but for calls.

    index: of the block of the latest piece; -1 before the first.
    """

    def __init__(self) -> None:
        self.index = -1
        self._kind: type[Piece] | None = None

    def begins(self, piece: Piece) -> bool:
        """Take the next piece; say whether a block begins with it."""
        kind = Arguments if isinstance(piece, Called) else type(piece)
        begins = isinstance(piece, Called) or kind is not self._kind
        self._kind = kind
        self.index += begins
        return begins


def content(pieces: Iterable[Piece]) -> list[ContentBlock]:
    """Return the blocks of a whole answer."""
    blocks = Blocks()
    parts: list[list[Piece]] = []
    for piece in pieces:
        if blocks.begins(piece):
            parts.append([])
        parts[-1].append(piece)
    return [_whole(part) for part in parts]


def _whole(part: Sequence[Piece]) -> ContentBlock:
    text = "".join(piece.text for piece in part if not isinstance(piece, Called))
    match empty(part[0]):
        case ThinkingBlock():
            signature = Signature()
            signature.add(text)
            return ThinkingBlock(thinking=text, signature=str(signature))
        case ToolUseBlock(id=id, name=name):
            return ToolUseBlock(id=id, name=name, input=msgspec.Raw(whole_input(text).encode()))
        case _:
            return TextBlock(text=text)


def empty(piece: Piece) -> ContentBlock:
    """Return the block that begins with a piece, as it is before it has any text."""
    match piece:
        case Thought():
            return ThinkingBlock()
        case Said():
            return TextBlock()
        case Called(_, id, name):
            return ToolUseBlock(id=id, name=name)
        case Arguments():
            raise AssertionError("arguments without a call")
