"""The event stream of a completion: the prompt where it is asked for, texts, the reason of the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tierd import core
from tierd.core import FinishedEvent, TextEvent
from tierd.http.completions.echo import Echo
from tierd.http.generation.choices import list_usage
from tierd.http.generation.logprobs import TextScribe
from tierd.http.shapes import Completion, Heading, TextChoice, TextLogprobs, Timings, Usage
from tierd.http.sse import DONE, frame, json_text, split


class CompletionFrames:
    """All frames of one completion; see sse.Frames.

    Token counts, where they are asked for, come in an object of their own, before [DONE]. Timings are in the
    last object that there is. What is told of a prompt comes with its first choice's events; the texts of the
    others wait for it.
    """

    first = b""

    def __init__(
        self,
        heading: Heading,
        include_usage: bool,
        scribes: Sequence[TextScribe],
        echoes: Sequence[Echo] = (),
        *,
        prompts: int = 1,
    ) -> None:
        """`scribes`: one for each choice. echoes: as many, or none. prompts: how many these answer."""
        self._heading = heading
        self._include_usage = include_usage
        self._each = len(scribes) // prompts
        self._usages: dict[int, core.Usage] = {}
        self._choices = [
            _Choice(heading, index, scribe, echoes[index] if echoes else None, include_usage)
            for index, scribe in enumerate(scribes)
        ]

    def encode(self, news: Iterable[tuple[int, TextEvent | FinishedEvent]]) -> bytes:
        """Return the frames of some (choice, event) pairs, in order."""
        return b"".join(frame for index, event in news for frame in self._frames(index, event))

    def _frames(self, index: int, event: TextEvent | FinishedEvent) -> list[bytes]:
        choice = self._choices[index]
        if isinstance(event, TextEvent) and event.prompt:
            return self._prompt(index, event.prompt)
        if choice.waits:
            choice.waiting.append(event)
            return []
        if isinstance(event, TextEvent):
            return choice.texts(event)
        self._usages[index] = event.usage
        return [*choice.rest(), *self._end(choice, event)]

    def _prompt(self, first: int, scores: Sequence[core.TokenLogprobs]) -> list[bytes]:
        """Return the frames of a part of a prompt, in each of its choices, and of what has waited for it."""
        frames = []
        for index in range(first, first + self._each):
            choice = self._choices[index]
            frames.append(choice.prompt(scores))
            if not choice.waits:
                waiting, choice.waiting = choice.waiting, []
                frames += [frame for event in waiting for frame in self._frames(index, event)]
        return frames

    def _end(self, choice: _Choice, end: FinishedEvent) -> list[bytes]:
        if len(self._usages) < len(self._choices):
            return [choice.end(end, msgspec.UNSET)]
        total = list_usage([self._usages[index] for index in sorted(self._usages)], self._each)
        timings = Timings.of(total)
        if not self._include_usage:
            return [choice.end(end, timings), DONE]
        counts = Completion(**self._heading, choices=[], usage=Usage.of(total), timings=timings)
        return [choice.end(end, msgspec.UNSET), frame(counts), DONE]


class _Choice:
    """One choice's frames. What stays the same is encoded once; a text costs its own JSON only.

    waiting: events that are not told yet, as more of the prompt comes before.
    """

    def __init__(
        self, heading: Heading, index: int, scribe: TextScribe, echo: Echo | None, include_usage: bool
    ) -> None:
        self._heading = heading
        self._index = index
        self._scribe = scribe
        self._echo = echo
        self._usage = None if include_usage else msgspec.UNSET
        self._head, self._tail = split(self._chunk)
        self.waiting: list[TextEvent | FinishedEvent] = []

    @property
    def waits(self) -> bool:
        """Whether more of the prompt is to be told before anything else."""
        return self._echo is not None and self._echo.due

    def prompt(self, scores: Sequence[core.TokenLogprobs]) -> bytes:
        """Return the frame of more of the prompt."""
        assert self._echo is not None
        return self._chunk(*self._echo.show(scores))

    def texts(self, event: TextEvent) -> list[bytes]:
        """Return the frames of a text."""
        if event.logprobs:
            return [*self.rest(), self._chunk(event.text, self._scribe.write(event.logprobs))]
        return [*self.rest(), self._head + json_text(event.text) + self._tail]

    def rest(self) -> list[bytes]:
        """Return the frame of what is not shown of the prompt yet."""
        return [] if self._echo is None or not self._echo.left else [self._chunk(*self._echo.show())]

    def end(self, end: FinishedEvent, timings: Timings | msgspec.UnsetType) -> bytes:
        """Return the frame of the end."""
        logprobs = self._scribe.write(end.logprobs) if end.logprobs else None
        return self._chunk("", logprobs, end.reason, timings)

    def _chunk(
        self,
        text: str,
        logprobs: TextLogprobs | None = None,
        reason: str | None = None,
        timings: Timings | msgspec.UnsetType = msgspec.UNSET,
    ) -> bytes:
        choice = TextChoice(text, self._index, logprobs, reason)
        return frame(Completion(**self._heading, choices=[choice], usage=self._usage, timings=timings))
