"""The answers to a turn, whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tierd.chat.reply import Arguments, Called, Piece, Said, Thought
from tierd.core import TokenLogprobs
from tierd.http.turns.conversation import Conversation, Ended


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool. arguments: JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice, whole."""

    thought: str
    text: str
    logprobs: Sequence[TokenLogprobs]
    calls: Sequence[Call]
    end: Ended


async def read_whole(conversation: Conversation) -> list[Answer]:
    """Run a conversation to its end; return all its choices."""
    pieces: list[list[Piece]] = [[] for _ in range(conversation.count)]
    ends: dict[int, Ended] = {}
    async with conversation:
        while not conversation.ended:
            for index, piece in await conversation.take():
                if isinstance(piece, Ended):
                    ends[index] = piece
                else:
                    pieces[index].append(piece)
    return [_join(each, ends[index]) for index, each in enumerate(pieces)]


def _join(pieces: Sequence[Piece], end: Ended) -> Answer:
    said = [piece for piece in pieces if isinstance(piece, Said)]
    arguments: defaultdict[int, list[str]] = defaultdict(list)
    for piece in pieces:
        if isinstance(piece, Arguments):
            arguments[piece.index].append(piece.text)
    return Answer(
        "".join(piece.text for piece in pieces if isinstance(piece, Thought)),
        "".join(piece.text for piece in said),
        [entry for piece in said for entry in piece.logprobs],
        [
            Call(piece.id, piece.name, "".join(arguments[piece.index]))
            for piece in pieces
            if isinstance(piece, Called)
        ],
        end,
    )
