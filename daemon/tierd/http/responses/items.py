"""Items of a response's output while they are being made. Pure: pieces in, events out.

Events come in this order: the item is added; its part is added; deltas; the text is done; the part; the item.
Calls have no parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tierd.chat.reply import Arguments, Called, Piece, Said, Thought
from tierd.http.generation.logprobs import ChatScribe
from tierd.http.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    Event,
    ItemAdded,
    ItemDone,
    Part,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    TextDone,
)
from tierd.http.responses.requests import ItemStatus
from tierd.http.responses.shapes import (
    FunctionCall,
    Logprob,
    OutputItem,
    OutputMessage,
    OutputText,
    Reasoning,
    ReasoningText,
    TopLogprob,
)
from tierd.http.shapes import ChatLogprobs


class Growing(Protocol):
    """An item. `index`: its place in the output. Sequence numbers are taken from the iterator given."""

    def takes(self, piece: Piece) -> bool:
        """Whether a piece belongs to it."""

    def begin(self, numbers: Iterator[int]) -> list[Event]:
        """Return the events of its beginning."""

    def add(self, piece: Piece, numbers: Iterator[int]) -> list[Event]:
        """Return the events of a piece that it takes, or that it is the item of."""

    def end(self, status: ItemStatus, numbers: Iterator[int]) -> list[Event]:
        """Return the events of its end, as so it has ended."""

    def item(self) -> OutputItem:
        """Return it, as far as it has come."""


class GrowingMessage:
    """What the model says."""

    def __init__(self, id: str, index: int, scribe: ChatScribe) -> None:
        self._id = id
        self._index = index
        self._scribe = scribe
        self._status: ItemStatus = "in_progress"
        self._texts: list[str] = []
        self._logprobs: list[Logprob] = []

    def takes(self, piece: Piece) -> bool:
        """See Growing."""
        return isinstance(piece, Said)

    def begin(self, numbers: Iterator[int]) -> list[Event]:
        """See Growing."""
        empty = OutputMessage(id=self._id, status="in_progress", content=[])
        return _begun(empty, self._index, OutputText(text=""), numbers)

    def add(self, piece: Piece, numbers: Iterator[int]) -> list[Event]:
        """See Growing."""
        assert isinstance(piece, Said)
        logprobs = _logprobs(self._scribe.write(piece.logprobs)) if piece.logprobs else []
        self._texts.append(piece.text)
        self._logprobs += logprobs
        return [
            TextDelta(
                sequence_number=next(numbers),
                item_id=self._id,
                output_index=self._index,
                delta=piece.text,
                logprobs=logprobs,
            )
        ]

    def end(self, status: ItemStatus, numbers: Iterator[int]) -> list[Event]:
        """See Growing."""
        self._status = status
        item = self.item()
        (part,) = item.content
        done = TextDone(
            sequence_number=next(numbers),
            item_id=self._id,
            output_index=self._index,
            text=part.text,
            logprobs=part.logprobs,
        )
        return [done, *_ended(item, self._index, part, numbers)]

    def item(self) -> OutputMessage:
        """See Growing."""
        part = OutputText(text="".join(self._texts), logprobs=list(self._logprobs))
        return OutputMessage(id=self._id, status=self._status, content=[part])


class GrowingReasoning:
    """What the model thinks."""

    def __init__(self, id: str, index: int) -> None:
        self._id = id
        self._index = index
        self._status: ItemStatus = "in_progress"
        self._texts: list[str] = []

    def takes(self, piece: Piece) -> bool:
        """See Growing."""
        return isinstance(piece, Thought)

    def begin(self, numbers: Iterator[int]) -> list[Event]:
        """See Growing."""
        empty = Reasoning(id=self._id, status="in_progress", content=[])
        return _begun(empty, self._index, ReasoningText(text=""), numbers)

    def add(self, piece: Piece, numbers: Iterator[int]) -> list[Event]:
        """See Growing."""
        assert isinstance(piece, Thought)
        self._texts.append(piece.text)
        return [
            ReasoningDelta(
                sequence_number=next(numbers), item_id=self._id, output_index=self._index, delta=piece.text
            )
        ]

    def end(self, status: ItemStatus, numbers: Iterator[int]) -> list[Event]:
        """See Growing."""
        self._status = status
        item = self.item()
        (part,) = item.content
        done = ReasoningDone(
            sequence_number=next(numbers), item_id=self._id, output_index=self._index, text=part.text
        )
        return [done, *_ended(item, self._index, part, numbers)]

    def item(self) -> Reasoning:
        """See Growing."""
        return Reasoning(id=self._id, status=self._status, content=[ReasoningText(text="".join(self._texts))])


class GrowingCall:
    """What the model calls."""

    def __init__(self, id: str, index: int, called: Called) -> None:
        self._id = id
        self._index = index
        self._called = called
        self._status: ItemStatus = "in_progress"
        self._texts: list[str] = []

    def takes(self, piece: Piece) -> bool:
        """See Growing."""
        return isinstance(piece, Arguments) and piece.index == self._called.index

    def begin(self, numbers: Iterator[int]) -> list[Event]:
        """See Growing."""
        return [ItemAdded(sequence_number=next(numbers), output_index=self._index, item=self.item())]

    def add(self, piece: Piece, numbers: Iterator[int]) -> list[Event]:
        """See Growing."""
        if isinstance(piece, Called):
            return []
        assert isinstance(piece, Arguments)
        self._texts.append(piece.text)
        return [
            ArgumentsDelta(
                sequence_number=next(numbers), item_id=self._id, output_index=self._index, delta=piece.text
            )
        ]

    def end(self, status: ItemStatus, numbers: Iterator[int]) -> list[Event]:
        """See Growing."""
        self._status = status
        item = self.item()
        return [
            ArgumentsDone(
                sequence_number=next(numbers),
                item_id=self._id,
                output_index=self._index,
                name=item.name,
                arguments=item.arguments,
            ),
            ItemDone(sequence_number=next(numbers), output_index=self._index, item=item),
        ]

    def item(self) -> FunctionCall:
        """See Growing."""
        return FunctionCall(
            id=self._id,
            status=self._status,
            arguments="".join(self._texts),
            call_id=self._called.id,
            name=self._called.name,
        )


def _begun(item: OutputItem, index: int, part: Part, numbers: Iterator[int]) -> list[Event]:
    """Return the events of the beginning of an item with a part."""
    return [
        ItemAdded(sequence_number=next(numbers), output_index=index, item=item),
        PartAdded(sequence_number=next(numbers), item_id=item.id, output_index=index, part=part),
    ]


def _ended(item: OutputItem, index: int, part: Part, numbers: Iterator[int]) -> list[Event]:
    """Return the events of the end of an item with a part."""
    return [
        PartDone(sequence_number=next(numbers), item_id=item.id, output_index=index, part=part),
        ItemDone(sequence_number=next(numbers), output_index=index, item=item),
    ]


def _logprobs(written: ChatLogprobs) -> list[Logprob]:
    """Return log-probabilities in this API's shape."""
    return [
        Logprob(
            token.token,
            token.bytes or [],
            token.logprob,
            [TopLogprob(top.token, top.bytes or [], top.logprob) for top in token.top_logprobs],
        )
        for token in written.content
    ]
