"""Opens conversations: checks a turn, renders and encodes its prompt, compiles what the answers must obey."""

from __future__ import annotations

from starlette.requests import Request

from tierd import core
from tierd.chat.renderer import encode_prompt
from tierd.chat.reply import ReplyParser
from tierd.chat.thought_budget import ThoughtBudget
from tierd.engine import CatalogueEntry, Engine
from tierd.http.encoder import Encoder
from tierd.http.generation import translate
from tierd.http.generation.choices import Choices
from tierd.http.generation.exchange import Exchange
from tierd.http.generation.formats import compile_source
from tierd.http.mailboxes import Mailboxes
from tierd.http.roster import Roster
from tierd.http.turns.conversation import Conversation, Reply
from tierd.http.turns.prompts import TurnPrompt, turn_prompt, turn_text
from tierd.http.turns.scoring import Scoring
from tierd.http.turns.turn import Turn


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
        grammar = await self._grammar(turn, entry, prompt, request)
        first = core.Request(
            id=id,
            model=entry.id,
            operation="chat",
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
                    _parser(turn, prompt, grammar),
                    Scoring(entry.tokenizer, first.spelled),
                )
                for _ in wanted
            ],
            len(prompt.ids),
        )

    async def count(self, turn: Turn) -> int:
        """Return how many tokens the prompt of a turn is, however many they are. Raises as `open` does."""
        entry = self._roster.resolve(self._engine.catalogue, turn.generation.model)
        prompt = await turn_text(self._encoder, entry, turn)
        translate.check_content(prompt, turn.messages_field)
        return await self._encoder.run(len(prompt), lambda: len(encode_prompt(entry.tokenizer, prompt)))

    async def _grammar(
        self, turn: Turn, entry: CatalogueEntry, prompt: TurnPrompt, request: Request
    ) -> core.Grammar | None:
        """Return what the answer obeys, in which thoughts are free."""
        source = turn.format
        grammar = await compile_source(self._encoder, entry, source, request)
        if turn.callable:
            source = await self._encoder.run_in_thread(
                lambda: prompt.format.grammar(
                    turn.callable, turn.tool_choice, parallel=turn.parallel_tool_calls, answer=turn.format
                )
            )
        if source is not turn.format:  # which has been compiled alone for what is wrong to have its name
            grammar = await compile_source(self._encoder, entry, source, request)
        if grammar is None:
            return None
        if _may_call_strictly(turn, prompt):
            obeyed = grammar
            grammar = await self._encoder.run_in_thread(
                lambda: prompt.format.calls_behind(obeyed, entry.tokenizer, prompt.opening)
            )
        return prompt.format.thought_first(
            grammar,
            entry.tokenizer,
            thinking=turn.thinks,
            opening=prompt.opening,
            calls=source is not turn.format,
        )


def _may_call_strictly(turn: Turn, prompt: TurnPrompt) -> bool:
    return prompt.format.may_call_strictly(turn.callable, turn.tool_choice, turn.format)


def _constrained(grammar: core.Grammar | None, turn: Turn, prompt: TurnPrompt) -> bool:
    """Whether all of the answer obeys a grammar."""
    return grammar is not None and not _may_call_strictly(turn, prompt)


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
        parser=lambda: _parser(turn, prompt, grammar),
    )


def _parser(turn: Turn, prompt: TurnPrompt, grammar: core.Grammar | None) -> ReplyParser:
    """Return the parser of an answer that obeys a grammar, or is free."""
    return prompt.format.parser(
        thinking=turn.thinks,
        opening=prompt.opening,
        tools=turn.callable,
        parallel=turn.parallel_tool_calls,
        constrained=_constrained(grammar, turn, prompt),
        forced=bool(turn.callable) and turn.tool_choice != "auto",
        strict=bool(turn.callable) and grammar is not None,
    )
