"""The nouns every floor speaks in. Imports nothing of tierd but `errors`.

A `Request` is what a client wants, frozen. A `Sequence` is the engine's record of serving it. A
`Batch` is one pass over a model's weights: chunks of one or more sequences. `Event`s travel back.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tierd.errors import InvalidRequestError, TierdError


class FinishReason(enum.StrEnum):
    """Why a stream ended, in OpenAI's words where it has one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, eq=False)
class TokenMask:
    """Which tokens may be picked, at least one.

    words: a bit for each id, the lowest first, then zeros; uint32, shape (ceil(vocabulary / 32),). Not to be
    changed. Raises InvalidRequestError where no bit is set.
    """

    words: npt.NDArray[np.uint32]

    def __post_init__(self) -> None:
        if not self.words.any():
            raise InvalidRequestError(
                "none of the model's tokens is allowed to come next; allow at least one"
            )

    @classmethod
    def of(cls, ids: Ordered[int], vocabulary: int) -> TokenMask:
        """Return the mask of these ids, each below `vocabulary`."""
        words = np.zeros(-(-vocabulary // 32), np.uint32)
        each = np.array(ids, np.uint32)
        np.bitwise_or.at(words, each // 32, np.uint32(1) << each % 32)
        return cls(words)

    def __contains__(self, id: int) -> bool:
        return bool(int(self.words[id // 32]) >> id % 32 & 1)


class Constraint(Protocol):
    """What the text of one stream may go on with. For one thread at a time; calls may take milliseconds.

    slow: they have taken long for a text of the same grammar.
    """

    @property
    def slow(self) -> bool:
        """See above; for any thread."""

    def allowed(self) -> TokenMask | None:
        """Return which tokens may come next, None for any; once nothing may, those that end a text.

        Raises InvalidRequestError: none may, or what there is to keep in mind has grown too large.
        """

    def advance(self, token: int) -> None:
        """Note that a token has come. Raises InvalidRequestError for one that was not allowed."""


class Following(Protocol):
    """Follows the text of one stream that has a grammar; for the engine, which it never keeps waiting.

    allowed: which tokens may come next, None for any, once that is known; with what the request allows. Where
    it never is the stream is ended. late: it was not known in time.
    """

    allowed: TokenMask | None
    late: bool

    @property
    def known(self) -> bool:
        """Whether it is known which tokens may come next."""

    def wait(self, seconds: float) -> None:
        """Wait for that, no longer than so. For runners."""

    def announce(self) -> bool:
        """Have a thread find out and the engine woken once it is known; return whether it is already."""

    def advance(self, token: int, *, aside: bool) -> None:
        """Note that a token has come: what may follow it is not known for a while.

        aside: a thread is to find out, as it does where that takes long; else who runs the next row.
        """

    def start(self) -> None:
        """Have a thread find out, unless it is known, or being found."""

    def find(self) -> None:
        """Find out here and now, unless it is known, or left to a thread. For runners."""


class Grammar(Protocol):
    """What a text must obey. Immutable, for any thread."""

    def begin(self) -> Constraint:
        """Return the constraint of a text that has not begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to pick a token from logits. The chain runs in the order of the fields.

    logit_bias: (id, what is added to its logit); an id stands there once.
    repeat_penalty: a token of the window has its logit divided by this if it is positive, else multiplied
    (as llama.cpp does); 1 changes nothing.
    presence_penalty: taken off the logit of a token that was generated within the window (as OpenAI does).
    frequency_penalty: taken off once for each time that it was.
    penalty_window: how many of the most recent tokens, prompt and generated, count; 0 counts all. Tokens
    of the prompt are of no account to presence and frequency.
    allowed: no other token is ever picked; None allows all.
    temperature: logits are divided by it; 0 picks the most likely token (lowest id on a tie) and ignores
    the rest.
    top_k: keep this many most likely tokens; 0 keeps all.
    top_p: then keep the fewest most likely tokens whose share reaches this; 1 keeps all.
    min_p: then keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
    seed: 64 bits. A draw depends on (seed, position) alone.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 0
    allowed: TokenMask | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    @property
    def penalises(self) -> bool:
        """Whether any penalty is on."""
        return (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


class Pooling(enum.StrEnum):
    """How the one vector of a text comes of the hidden states of its tokens.

    NONE: there is none. MEAN: their mean. CLS, LAST: that of the first, of the last. RANK: a head of the
    model's own makes a score of it.
    """

    NONE = "none"
    MEAN = "mean"
    CLS = "cls"
    LAST = "last"
    RANK = "rank"


@dataclass(frozen=True, slots=True)
class Embedding:
    """What a request gets that wants no text: the vector of its prompt, of length 1.

    pooling: MEAN, CLS or LAST. dimensions: of its values the first so many alone, of length 1; None: all.
    """

    pooling: Pooling
    dimensions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One admitted request. `prompt` holds token ids, at least one.

    `prompt` plus `max_tokens` fit the model's context; whoever builds a Request has checked it.
    `stop` strings end the text before they appear in it. With `ignore_eos` an end-of-generation
    token is an ordinary token. `top_logprobs`: tell each token's log-probability, and those of this
    many most likely ones; None tells none. `prompt_logprobs`: the same of the prompt's tokens but the first.
    `grammar`: what the text obeys; where that leaves nothing but its end, it ends, with `ignore_eos` too.
    `spelled`: control tokens whose spelling belongs to the text.
    `priority`: lower ones are served sooner; see `engine.queue`.
    `key`: the name of the API key that it came with; "" where none is asked for.
    `operation`: what it is of, by OpenTelemetry's names for what is asked of models.
    `traceparent`: which trace it is part of, and under which span, by W3C Trace Context; "": of none.
    `owner`: whose it is: requests go on with K/V of their owner's alone.
    `embedding`: wanted in place of any text; max_tokens is 0 then, with which it ends once its prompt is fed.
    """

    id: str
    model: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    spelled: frozenset[int] = frozenset()
    priority: int = 0
    key: str = ""
    owner: str = ""
    operation: str = "text_completion"
    traceparent: str = ""
    embedding: Embedding | None = None

    @property
    def positions(self) -> int:
        """How many positions of a context it takes."""
        return len(self.prompt) + self.max_tokens

    @property
    def positions_fed(self) -> int:
        """How many of them are ever fed: the last token that it asks for is not."""
        return len(self.prompt) + max(0, self.max_tokens - 1)

    @property
    def shares(self) -> bool:
        """Whether it may go on with K/V of others that began alike, and others with its own.

        One that wants an embedding, or its prompt's log-probabilities, does neither: it needs what was fed to
        give more than K and V, and a thousand texts that nobody goes on from would drive out the
        conversations that are kept.
        """
        return self.embedding is None and self.prompt_logprobs is None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one finished request. Every sampled token counts, an end-of-generation token too.

    cached_tokens: how many of the prompt's tokens did not have to be fed. reasoning_tokens: how many of the
    sampled ones the model has thought in, which whoever reads its text finds out.
    prompt_s: from its first rows to its first token, or to its end. generation_s: from there to its last.
    Seconds.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    prompt_s: float = field(default=0.0, compare=False)
    generation_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a sampled token was: by the model's own logits, before the sampler's chain.

    top: (id, log-probability) of the most likely tokens, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StartedEvent:
    """The request has left the queue: its first rows are being fed. At most one, before any other event.

    cached_tokens: as in Usage.
    """

    cached_tokens: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class TextEvent:
    """New text of a stream; never half a character, never part of a stop string.

    logprobs: of the tokens whose text begins in it, where the request asks for them; then the text may be
    empty. generated: how many tokens of the stream have been sampled by now.
    prompt: of the next of the prompt's tokens, from the second on, where the request asks for them; they come
    before any text, without any.
    """

    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    generated: int = field(default=0, compare=False)
    prompt: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """Terminal: the stream ended as asked.

    embedding: float32, where that was asked for. stop: the stop string that has ended it, if one did.
    logprobs: of the end-of-generation token that did, where log-probabilities are asked for.
    """

    reason: FinishReason
    usage: Usage
    embedding: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    stop: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """Terminal: the stream could not go on."""

    error: TierdError


TerminalEvent = FinishedEvent | FailedEvent
Event = StartedEvent | TextEvent | TerminalEvent


class TextStream(Protocol):
    """Turns one stream's token ids into text, piece by piece, and watches for stop strings."""

    def push(self, token: int) -> str:
        """Return the text that became certain with this token ("" while it is held back)."""

    @property
    def stopped_by(self) -> str | None:
        """The stop string that was completed, if one was; nothing after it is ever returned."""

    @property
    def shown(self) -> int:
        """How many of the tokens have begun to show in the text that was returned; all after `finish`."""

    def finish(self) -> str:
        """Return what was held back; called once, when the stream ends without a stop string."""


class SavedRows(Protocol):
    """Rows of K/V outside of any executor, from position 0 on."""

    @property
    def origin(self) -> str:
        """What has computed them; see `kv.home.Home`."""

    @property
    def positions(self) -> int:
        """How many positions have rows."""

    @property
    def layers(self) -> Ordered[npt.NDArray[np.uint8]]:
        """The rows by layer, shape (positions or more, bytes of one position); see backends.protocol."""

    def fetch(self, then: Callable[[bool], None]) -> None:
        """Have `layers` there: `then` is called, at once or later on the engine thread, told if they are."""

    def close(self) -> None:
        """Give up what they take, unless they are kept for others. Idempotent."""


@dataclass(slots=True, eq=False)
class Sequence:
    """The engine's record of one request being served. Only the engine thread touches it.

    tokens: prompt ids, then sampled ids. `tokens[:fed]` have their K/V in `pages`.
    cached: how many of them had it from the start.
    refed: how many had it once, and have to be fed again because it could not be kept.
    held: pages given back already that a step in flight still writes to, behind what is kept of them.
    pages: page ids in order; page i holds positions [i * page_positions, (i + 1) * page_positions).
    history: `tokens` as penalties read them; the sampler brings it up to date when it needs it.
    logprobs: of sampled tokens that are not told yet, because their text is held back. told: how many are.
    scored: of how many of the prompt's rows the log-probabilities are told that were asked for.
    moves: of its rows that are under way or asked for; until they are over no step holds rows of it.
    saved: its rows where they are outside of any executor, to be brought into its pages when it is admitted.
    mixed: some of its rows were computed elsewhere than the rest, so that no other stream may share them.
    follows: a stream whose prompt begins alike, and whose rows it waits for.
    passes: why it is on the CPU although its model is on the device; None when it is not.
    foreseen: what the executor drew for the newest token; -1 where it left that to the sampler.
    submitted: when the request was asked for, monotonic seconds. rank: the order in which streams get what is
    scarce, the lowest first; see `engine.queue.rank`.
    pooled: the sum of the hidden states that its embedding is made of; None before the first of them.
    summed: of its positions, the first so many are in it, or of no account.
    paused: it gets no rows, because its reader does not keep up.
    preemptions: how often it had to give up its pages for others.
    following: follows its text; None where it has no grammar.
    """

    request: Request
    text: TextStream
    tokens: list[int]
    fed: int = 0
    cached: int = 0
    refed: int = 0
    pages: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    history: array[int] = field(default_factory=lambda: array("i"))
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    told: int = 0
    scored: int = 0
    moves: int = 0
    saved: SavedRows | None = None
    mixed: bool = False
    follows: Sequence | None = None
    passes: PassReason | None = None
    foreseen: int = -1
    submitted: float = 0.0
    rank: float = 0.0
    pooled: npt.NDArray[np.float64] | None = None
    summed: int = 0
    paused: bool = False
    preemptions: int = 0
    following: Following | None = None

    @property
    def owner(self) -> str:
        """Whose it is; see Request."""
        return self.request.owner

    @property
    def generated(self) -> int:
        """Number of sampled tokens so far."""
        return len(self.tokens) - len(self.request.prompt)


# `plus` is added to an id's logit, then that is divided by `repeat` if positive, else multiplied by it, then
# `minus` is taken off, in float32. Kernels and shaders read it as it is.
ADJUSTMENT = np.dtype(
    [("id", np.uint32), ("plus", np.float32), ("repeat", np.float32), ("minus", np.float32)]
)
NO_ADJUSTMENTS = np.empty(0, ADJUSTMENT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draw:
    """How a token is to be picked from a row of logits; the chain is that of SamplingParams.

    adjustments: of type ADJUSTMENT, for every id whose logit changes before all else, in order, each id once.
    allowed: then no other token is picked. uniform: a number in [0, 1) that decides.
    top_logprobs: the token's log-probability is wanted, and those of this many most likely ones; None: none.
    """

    adjustments: npt.NDArray[np.void] = field(default_factory=lambda: NO_ADJUSTMENTS)
    allowed: TokenMask | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    uniform: float = 0.0
    top_logprobs: int | None = None

    @property
    def changes_logits(self) -> bool:
        """Whether the logits that it picks from are others than the model's own."""
        return self.adjustments.size > 0 or self.allowed is not None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of one sequence within a batch.

    tokens: the ids to feed, at positions start, start + 1, ... An id below 0 is the only one of its chunk and
    stands for what the executor draws for row -1 - id of the batch before, in the order of its logits.
    pages: the sequence's page table; covers position start + len(tokens) - 1.
    logit_rows: offsets within `tokens` whose logits are wanted, ascending; often just the last.
    targets: for the first so many of these, the token whose log-probability is wanted. What is left, one at
    most, is to draw a token from.
    hidden_rows: those, of the others, whose hidden states are wanted: what the classifier would read.
    """

    tokens: Ordered[int]
    start: int
    pages: Ordered[int]
    logit_rows: tuple[int, ...] = ()
    hidden_rows: Ordered[int] = ()
    targets: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The position behind its last row."""
        return self.start + len(self.tokens)

    @property
    def draws(self) -> bool:
        """Whether a token comes of it."""
        return len(self.logit_rows) > len(self.targets)


@dataclass(frozen=True, slots=True)
class Batch:
    """One pass over the weights. Logits come back in the order of chunks, then of `logit_rows`.

    So do hidden states, in that of `hidden_rows`.

    draws: for each of these rows how to pick a token, for executors that do; () to have logits only.
    """

    chunks: tuple[Chunk, ...]
    draws: tuple[Draw, ...] = ()

    @property
    def rows(self) -> int:
        """Number of token rows."""
        return sum(len(chunk.tokens) for chunk in self.chunks)

    @property
    def logit_rows(self) -> int:
        """Number of rows whose logits come back."""
        return sum(len(chunk.logit_rows) for chunk in self.chunks)

    @property
    def hidden_rows(self) -> int:
        """Number of rows whose hidden states come back."""
        return sum(len(chunk.hidden_rows) for chunk in self.chunks)


class PassReason(enum.StrEnum):
    """Why something that was meant for the GPU was handed to the CPU; `words` say it to people.

    The first three: the load was declined. Up to CAP: the stream's K/V is not on the device. From CAP on:
    a prompt's chunk of a stream whose K/V is on the host did not run in the device's scratch region.
    """

    words: str

    CODEC = "codec", "its K/V is of a type that the device does not keep"
    UNSUPPORTED_OP = "unsupported_op", "the device lacks something that the model needs"
    NO_ROOM = "no_room", "the model does not fit into the device's memory"
    DEVICE_LOST = "device_lost", "the device failed and is not back"
    AWAY = "away", "its model is away from the device, which has another"
    UNHOMED = "unhomed", "no region of K/V was free on the device"
    PAGED = "paged", "a region is free again, but the stream's K/V lies in pages of the host"
    CAP = "cap", "the stream is longer than a region of K/V on the device"
    PINNED_OFF = (
        "pinned_off",
        "streams that live on the device generate there, and prompts of others must not delay them",
    )
    BUSY = "busy", "another stream's prompt is in the scratch region"
    SUPERSEDED = "superseded", "another stream's prompt has taken the scratch region since"
    CONTINUATION = "continuation", "the device cannot continue a prompt that has been begun"
    GAP = "gap", "positions before the prompt's chunk were computed elsewhere"
    REWIND = (
        "rewind",
        "the prompt's chunk begins before rows that were fed already, and the device cannot go back",
    )

    def __new__(cls, value: str, words: str) -> PassReason:
        """Make a member out of a row of the table."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.words = words
        return member
