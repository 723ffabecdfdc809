"""A turn of a chat, whichever API asks for it: from what is wanted to the pieces of the answers.

An API's own module makes a `Turn` of its body; `Turns.open` checks it, renders and encodes the prompt and
returns a `Conversation`, which yields (choice, piece) pairs until every choice has had its `Ended`. The
module makes JSON of them, whole (`read_whole`) or framed (`sse.EventStream`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Literal, Self

from starlette.requests import Request

from tierd import core
from tierd.chat.grammar import Source
from tierd.chat.reply import Arguments, Called, Piece, ReplyParser, Said, Thought
from tierd.chat.thought_budget import ThoughtBudget
from tierd.chat.tools import Tool
from tierd.core import FinishedEvent, FinishReason, TextEvent, TokenLogprobs
from tierd.engine import CatalogueEntry, Engine
from tierd.http import translate
from tierd.http.choices import Choices
from tierd.http.encoder import Encoder
from tierd.http.exchange import Exchange
from tierd.http.formats import compile_source
from tierd.http.mailboxes import Mailboxes
from tierd.http.prompts import TurnPrompt, turn_prompt
from tierd.http.requests import Generation
from tierd.http.roster import Roster
from tierd.http.scoring import Scoring

EndReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What an answer is to be made of.

    generation: model, n, stop, seed and how to sample. Its max_tokens and stream are not looked at. Stop
    strings count in all that the model writes, thoughts and marks too, as they do with vLLM.
    messages: in OpenAI's shape, content a text; tool_calls with arguments as JSON text; errors name them
    `messages_field`. max_tokens: None for what the context leaves; errors name it `tokens_field`.
    tool_choice: "auto", "none", "required", or the name of a tool.
    format: what the answer must obey; None: nothing.
    thinking: whether the model is to think first; None: as its template has it. effort: how much, in
    OpenAI's words; for templates that take it. thought_tokens: how many it may think in, None for any.
    template_variables: for the template, beside messages and tools.
    continues: the last message is the beginning of the answer, which goes on from there. opens: else the
    template opens the answer; without, the model goes on from the bare conversation.
    top_logprobs: as core.Request has it.
    """

    generation: Generation
    messages: Sequence[Mapping[str, object]]
    messages_field: str = "messages"
    max_tokens: int | None = None
    tokens_field: str = "max_tokens"
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    format: Source | None = None
    thinking: bool | None = None
    effort: str | None = None
    thought_tokens: int | None = None
    template_variables: Mapping[str, object] = field(default_factory=dict)
    continues: bool = False
    opens: bool = True
    top_logprobs: int | None = None

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        return () if self.tool_choice == "none" else self.tools

    @property
    def thinks(self) -> bool | None:
        """`thinking`, or what `effort` says about it."""
        return False if self.thinking is None and self.effort == "none" else self.thinking


@dataclass(frozen=True, slots=True)
class Ended:
    """The last news of a choice.

    usage: its counts; the prompt's are the same for all of them. stop: the stop string that ended it, if any.
    """

    reason: EndReason
    usage: core.Usage
    stop: str | None = None


News = list[tuple[int, Piece | Ended]]


class Turns:
    """Makes conversations of turns; the app has one."""

    def __init__(self, engine: Engine, mailboxes: Mailboxes, encoder: Encoder, roster: Roster) -> None:
        self._engine = engine
        self._mailboxes = mailboxes
        self._encoder = encoder
        self._roster = roster

    async def open(self, turn: Turn, id: str, request: Request) -> Conversation:
        """Check a turn, render and encode its prompt. Nothing is generated until it is entered.

        id: of the engine's request of the first choice; the others' begin with it.
        Raises ModelNotFoundError, UnavailableError, InvalidRequestError, ContextLengthExceededError.
        """
        entry = self._roster.resolve(self._engine.catalogue, turn.generation.model)
        prompt = await turn_prompt(self._encoder, entry, turn)
        grammar = await self._grammar(turn, entry, prompt)
        first = core.Request(
            id=id,
            model=entry.id,
            prompt=tuple(prompt.ids),
            max_tokens=translate.budget(
                entry, len(prompt.ids), (turn.max_tokens, turn.tokens_field), turn.messages_field
            ),
            sampling=translate.sampling(turn.generation, entry),
            stop=translate.stops(turn.generation),
            ignore_eos=bool(turn.generation.ignore_eos),
            priority=turn.generation.priority or 0,
            top_logprobs=turn.top_logprobs,
            grammar=_bounded(grammar, turn, entry, prompt),
            spelled=prompt.format.spelled(tools=bool(turn.callable)),
        )
        wanted = translate.each_choice(first, turn.generation, entry)
        request.state.asked = True  # from here on the engine notes how it ends
        return Conversation(
            entry,
            Choices([Exchange(self._engine, self._mailboxes, one, request) for one in wanted]),
            [
                Reply(
                    _parser(turn, prompt, constrained=grammar is not None),
                    Scoring(entry.tokenizer, first.spelled),
                )
                for _ in wanted
            ],
            len(prompt.ids),
        )

    async def _grammar(self, turn: Turn, entry: CatalogueEntry, prompt: TurnPrompt) -> core.Grammar | None:
        """Return what the answer obeys, in which thoughts are free."""
        source = turn.format
        grammar = await compile_source(self._encoder, entry, source)
        if turn.callable:
            source = await self._encoder.run_in_thread(
                lambda: prompt.format.grammar(
                    turn.callable, turn.tool_choice, parallel=turn.parallel_tool_calls, answer=turn.format
                )
            )
        if source is not turn.format:  # which has been compiled alone for what is wrong to have its name
            grammar = await compile_source(self._encoder, entry, source)
        if grammar is None:
            return None
        return prompt.format.thought_first(
            grammar,
            entry.tokenizer,
            thinking=turn.thinks,
            opening=prompt.opening,
            calls=source is not turn.format,
        )


def _bounded(
    grammar: core.Grammar | None, turn: Turn, entry: CatalogueEntry, prompt: TurnPrompt
) -> core.Grammar | None:
    """Return a grammar that ends thoughts too, once they have taken as many tokens as they may."""
    format = prompt.format
    if turn.thought_tokens is None or format.marks is None:
        return grammar
    return ThoughtBudget(
        grammar,
        entry.tokenizer,
        tokens=turn.thought_tokens,
        end=format.marks.end,
        spelled=format.spelled(tools=bool(turn.callable)),
        parser=lambda: _parser(turn, prompt, constrained=grammar is not None),
    )


def _parser(turn: Turn, prompt: TurnPrompt, *, constrained: bool) -> ReplyParser:
    return prompt.format.parser(
        thinking=turn.thinks,
        opening=prompt.opening,
        tools=turn.callable,
        parallel=turn.parallel_tool_calls,
        constrained=constrained,
    )


class Conversation:
    """The choices of a turn, as pieces. A context manager, which begins them and ends what is left of them.

    entry: the model. prompt_tokens: ids of the prompt. count: choices.
    """

    def __init__(
        self, entry: CatalogueEntry, choices: Choices, replies: Sequence[Reply], prompt_tokens: int
    ) -> None:
        self.entry = entry
        self.prompt_tokens = prompt_tokens
        self.count = len(replies)
        self._choices = choices
        self._replies = replies

    async def __aenter__(self) -> Self:
        await self._choices.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._choices.__aexit__(kind, error, trace)

    @property
    def ended(self) -> bool:
        """Whether every choice has had its Ended."""
        return self._choices.ended

    @property
    def under_way(self) -> bool:
        """See Choices."""
        return self._choices.under_way

    @property
    def cached_tokens(self) -> int:
        """See Choices."""
        return self._choices.cached_tokens

    def cut_slow(self, cut: Callable[[], None]) -> None:
        """See Choices."""
        self._choices.cut_slow(cut)

    def remind(self, seconds: float) -> None:
        """See Choices."""
        self._choices.remind(seconds)

    async def take(self) -> News:
        """Wait for news and return (choice, piece or end), in order for each choice.

        May be called until `ended`; an empty list is a reminder. Raises as Exchange.take does.
        """
        while True:
            events = await self._choices.take()
            news: News = []
            for index, event in events:
                reply = self._replies[index]
                news += [(index, piece) for piece in reply.read(event)]
                if reply.cut:
                    self._choices.finish(index)
            if news or not events:
                return news


class Reply:
    """One choice on its way: the engine's events become pieces and an end."""

    def __init__(self, parser: ReplyParser, scoring: Scoring) -> None:
        self._parser = parser
        self._scoring = scoring
        self._calls = 0
        self._generated = 0
        self._reasoning = 0
        self._told = False

    @property
    def cut(self) -> bool:
        """Whether the stream is to be ended now; true once."""
        if self._parser.ended and not self._told:
            self._told = True
            return True
        return False

    def read(self, event: TextEvent | FinishedEvent) -> list[Piece | Ended]:
        """Return what becomes of an event."""
        if isinstance(event, TextEvent):
            return [] if self._parser.ended else self._noted(self._push(event))
        self._told = True
        over = self._parser.ended
        pieces = [] if over else self._noted(self._scoring.rest(self._parser.finish()))
        usage = replace(event.usage, reasoning_tokens=self._reasoning)
        return [*pieces, Ended(self._reason(event), usage, None if over else event.stop)]

    def _push(self, event: TextEvent) -> list[Piece]:
        before = self._parser.thinking
        pieces = self._parser.push(event.text)
        thinks = before or self._parser.thinking
        if thinks:
            self._reasoning += event.generated - self._generated
        if thinks or pieces:  # else it is open yet what the latest tokens are
            self._generated = event.generated
        return self._scoring.score(pieces, event.logprobs)

    def _noted(self, pieces: list[Piece]) -> list[Piece | Ended]:
        self._calls += sum(isinstance(piece, Called) for piece in pieces)
        return list(pieces)

    def _reason(self, event: FinishedEvent) -> EndReason:
        if event.reason is FinishReason.LENGTH and not self._parser.ended:
            return "length"
        return "tool_calls" if self._calls else "stop"


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
