"""The event stream of a chat completion: the role, pieces of the answer, the reason of the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tierd import core
from tierd.chat.reply import Arguments, Called, Piece, Said, Thought
from tierd.http.generation.choices import total_usage
from tierd.http.generation.logprobs import ChatScribe
from tierd.http.shapes import (
    CallDelta,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    Delta,
    FunctionDelta,
    Heading,
    Timings,
    Usage,
)
from tierd.http.sse import DONE, frame, json_text, split
from tierd.http.turns.conversation import Ended


class ChatFrames:
    """All frames of one chat; see sse.Frames.

    The role comes first, by itself. Token counts, where they are asked for, come in an object of their own,
    before [DONE]. Timings are in the last object that there is.
    """

    def __init__(self, heading: Heading, include_usage: bool, scribes: Sequence[ChatScribe]) -> None:
        """`scribes`: one for each choice."""
        self._choices = [_Choice(heading, i, scribe, include_usage) for i, scribe in enumerate(scribes)]
        self.first = b"".join(choice.first for choice in self._choices)
        self._heading = heading
        self._include_usage = include_usage
        self._usages: dict[int, core.Usage] = {}

    def encode(self, news: Iterable[tuple[int, Piece | Ended]]) -> bytes:
        """Return the frames of some (choice, piece or end) pairs, in order."""
        frames = []
        for index, piece in news:
            choice = self._choices[index]
            if isinstance(piece, Ended):
                self._usages[index] = piece.usage
                frames += self._end(choice, piece)
            else:
                frames.append(choice.encode(piece))
        return b"".join(frames)

    def _end(self, choice: _Choice, end: Ended) -> list[bytes]:
        if len(self._usages) < len(self._choices):
            return [choice.end(end, msgspec.UNSET)]
        total = total_usage([self._usages[i] for i in sorted(self._usages)])
        timings = Timings.of(total)
        if not self._include_usage:
            return [choice.end(end, timings), DONE]
        counts = ChatChunk(**self._heading, choices=[], usage=Usage.of(total), timings=timings)
        return [choice.end(end, msgspec.UNSET), frame(counts), DONE]


class _Choice:
    """One choice's frames. What stays the same is encoded once; a text costs its own JSON only."""

    def __init__(self, heading: Heading, index: int, scribe: ChatScribe, include_usage: bool) -> None:
        self._heading = heading
        self._index = index
        self._scribe = scribe
        self._usage = None if include_usage else msgspec.UNSET
        self.first = self._chunk(Delta("assistant", ""))
        self._said = split(lambda text: self._chunk(Delta(content=text)))
        self._thought = split(lambda text: self._chunk(Delta(reasoning_content=text)))

    def encode(self, piece: Piece) -> bytes:
        """Return the frame of a piece."""
        match piece:
            case Said(text, ()):
                head, tail = self._said
                return head + json_text(text) + tail
            case Said(text, logprobs):
                return self._chunk(Delta(content=text), logprobs=self._scribe.write(logprobs))
            case Thought(text):
                head, tail = self._thought
                return head + json_text(text) + tail
            case Called(index, id, name):
                function = FunctionDelta(name=name, arguments="")
                return self._called(CallDelta(index=index, id=id, type="function", function=function))
            case Arguments(index, text):
                return self._called(CallDelta(index=index, function=FunctionDelta(arguments=text)))

    def end(self, end: Ended, timings: Timings | msgspec.UnsetType) -> bytes:
        """Return the frame of the end."""
        return self._chunk(Delta(), end.reason, timings=timings)

    def _called(self, call: CallDelta) -> bytes:
        return self._chunk(Delta(tool_calls=[call]))

    def _chunk(
        self,
        delta: Delta,
        reason: str | None = None,
        logprobs: ChatLogprobs | None = None,
        timings: Timings | msgspec.UnsetType = msgspec.UNSET,
    ) -> bytes:
        choice = ChatChunkChoice(self._index, delta, logprobs, reason)
        return frame(ChatChunk(**self._heading, choices=[choice], usage=self._usage, timings=timings))
