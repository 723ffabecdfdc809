"""A conversation with a model behind the OpenAI HTTP API, and what an answer of it took."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tierd.cli.client import Client


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    """What is read of one object of a chat stream."""

    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


class Thought(str):
    """A piece of what a model thinks before it answers."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What one answer took. None: the daemon did not say, as of an answer that was stopped.

    prompt, cached, generated: tokens. first_s: seconds to the first text. rate: tokens a second after it.
    reason: why the answer ended.
    """

    prompt: int | None
    cached: int | None
    generated: int | None
    first_s: float | None
    rate: float | None
    reason: str

    def __str__(self) -> str:
        first = "?" if self.first_s is None else f"{self.first_s * 1000:,.0f}"
        rate = "?" if self.rate is None else f"{self.rate:,.1f}"
        return (
            f"prompt {_count(self.prompt)} (cached {_count(self.cached)}), "
            f"generated {_count(self.generated)}, first token {first} ms, {rate} tokens/s, {self.reason}"
        )


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else f"{tokens:,}"


@dataclass(slots=True)
class Conversation:
    """Messages so far, and with whom. model None: the daemon's default. system "": none.

    default: which model the daemon's default one is, once an answer has told. stats: of the last answer.
    """

    client: Client
    model: str | None = None
    system: str = ""
    parameters: dict[str, float] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)
    default: str | None = None
    stats: Stats | None = None

    def ask(self, text: str) -> Generator[str, None, None]:
        """Yield the answer piece by piece, its Thought before it. Raises DaemonError.

        An answer that is broken off, by closing the iterator too, is remembered as far as it came; a
        question that got no answer is forgotten.
        """
        return self._answer(self.messages, text)

    def retry(self) -> Generator[str, None, None]:
        """Ask the last question again, of which there must be one. Raises DaemonError.

        The answer takes the place of the last one, which stays when there is none.
        """
        return self._answer(self.messages[:-2], self.messages[-2]["content"])

    def _answer(self, before: list[dict[str, str]], text: str) -> Generator[str, None, None]:
        asked = [*before, {"role": "user", "content": text}]
        pieces: list[str] = []
        usage = _Usage()
        reason: str | None = None
        started = time.monotonic()
        first = None
        try:
            for event in self.client.stream("/v1/chat/completions", self._wanted(asked)):
                chunk = self.client.shaped(event, _Chunk)
                if self.model is None:
                    self.default = chunk.model or self.default
                usage = chunk.usage or usage
                for choice in chunk.choices or ():
                    reason = choice.finish_reason or reason
                    delta = choice.delta or _Delta()
                    if delta.reasoning_content:
                        first = first or time.monotonic()
                        yield Thought(delta.reasoning_content)
                    if delta.content:
                        first = first or time.monotonic()
                        pieces.append(delta.content)
                        yield delta.content
        finally:
            if pieces or reason:
                self.messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]
                self.stats = _measure(usage, reason or "broken off", started, first, time.monotonic())

    def reset(self) -> None:
        """Forget all messages; the system prompt stays."""
        self.messages.clear()
        self.stats = None

    def request(self) -> dict[str, Any]:
        """Return the conversation as a body for /v1/chat/completions."""
        return self._request(self.messages)

    def _request(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        model = {} if self.model is None else {"model": self.model}
        return {**model, **self.parameters, "messages": [*system, *messages]}

    def _wanted(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return {**self._request(messages), "stream": True, "stream_options": {"include_usage": True}}


def _measure(usage: _Usage, reason: str, started: float, first: float | None, ended: float) -> Stats:
    generated, details = usage.completion_tokens, usage.prompt_tokens_details
    rate = None
    if first is not None and generated is not None and generated > 1 and ended > first:
        rate = (generated - 1) / (ended - first)
    return Stats(
        prompt=usage.prompt_tokens,
        cached=None if details is None else details.cached_tokens,
        generated=generated,
        first_s=None if first is None else first - started,
        rate=rate,
        reason=reason,
    )
