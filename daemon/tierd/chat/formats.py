"""How one model takes a chat and answers it; `probing` finds it out when the model is loaded."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tierd.chat.call_grammar import call_grammar, cut_at
from tierd.chat.calls import GENERIC, CallSyntax
from tierd.chat.calls_behind import CallsBehind
from tierd.chat.grammar import Source
from tierd.chat.harmony import HarmonyParser
from tierd.chat.reasoning import FINAL, HARMONY, USUAL, ThoughtMarks
from tierd.chat.renderer import Renderer
from tierd.chat.reply import ReplyParser
from tierd.chat.tagged import TaggedParser
from tierd.chat.thought_first import ThoughtFirst
from tierd.chat.tokenizer import Tokenizer
from tierd.chat.tools import Message, Tool, generic, native, tell
from tierd.core import Grammar
from tierd.errors import InvalidRequestError

# Variables by which templates turn thinking on and off.
_SWITCHES = ("enable_thinking", "thinking")
_EFFORT = "reasoning_effort"
# Templates that take an effort know these three; OpenAI has more.
_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
# What a Harmony prompt ends with, before the heading of the answer's first message.
_ASSISTANT = "<|start|>assistant"
# The end of a prompt in which the marks of a thought may stand.
_TAIL = 200
_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation that wants an answer; see http/turns/turn.py for what the fields mean."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    parallel: bool = True
    thinking: bool | None = None
    effort: str | None = None
    variables: Mapping[str, object] | None = None
    continues: bool = False
    opens: bool = True


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, and what the answer has begun with in it."""

    prompt: str
    opening: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """How one model answers. Immutable; for any thread, while its renderer is.

    marks: around thoughts; None where it knows none. thinks: its template thinks unless told not to.
    calls: how it writes calls. native: its template knows tools. objects: it takes arguments as objects.
    several: and more than one call in a message. nulls: and null for the text of one with calls alone.
    lists: it says which tools there are. system: it knows system messages.
    thoughts: the key under which it takes what was thought; "" where it does not. beside: it does so beside
    text and calls of the same message.
    specials: the marks that are control tokens, with their ids.
    """

    renderer: Renderer
    marks: ThoughtMarks | None = None
    thinks: bool = False
    calls: CallSyntax = GENERIC
    native: bool = False
    objects: bool = True
    several: bool = True
    nulls: bool = False
    lists: bool = True
    system: bool = True
    thoughts: str = ""
    beside: bool = True
    specials: Mapping[str, int] = field(default_factory=dict)

    def spelled(self, *, tools: bool) -> frozenset[int]:
        """Return the control tokens that the parser must see. tools: some may be called."""
        shown = self.marks and (self.marks.start, self.marks.end)
        return frozenset(
            id
            for text, id in self.specials.items()
            if tools or self.marks is HARMONY or text in (shown or ())
        )

    def render(self, chat: Chat) -> Rendered:
        """Return the prompt of a chat. Blocks as Renderer.render does, and raises what that raises."""
        if self.native:
            messages = native(
                chat.messages,
                objects=self.objects,
                several=self.several,
                thoughts=self.thoughts,
                beside=self.beside,
                nulls=self.nulls,
            )
            if chat.tools and not self.lists:
                tell(messages, chat.tools, self.calls, parallel=chat.parallel, system=self.system)
            tools = [tool.told() for tool in chat.tools] or None
        else:
            messages = generic(
                chat.messages, chat.tools, parallel=chat.parallel, system=self.system, thoughts=self.thoughts
            )
            tools = None
        variables = {**self._switched(chat), **(chat.variables or {})}
        render = partial(self.renderer.render, tools=tools, variables=variables)
        if chat.continues:
            rendered = _continued(render, messages)
            if rendered.opening.strip() or self.marks is None:
                return rendered
            return Rendered(rendered.prompt, self.marks.opening(rendered.prompt[-_TAIL:]))
        prompt = render(messages, add_generation_prompt=chat.opens)
        opening = self.marks.opening(prompt[-_TAIL:]) if self.marks and chat.opens else ""
        if opening and self.marks and chat.thinking is False and self.marks.stage(opening) == "thought":
            closing = f"\n{self.marks.end}\n\n"
            return Rendered(prompt.rstrip() + closing, opening.rstrip() + closing)
        return Rendered(prompt, opening)

    def _switched(self, chat: Chat) -> dict[str, object]:
        """Return the variables for what the chat says about thinking, where the template takes any."""
        takes = self.renderer.takes
        variables: dict[str, object] = {}
        if chat.effort is not None and _EFFORT in takes:
            variables[_EFFORT] = _EFFORTS.get(chat.effort, chat.effort)
        if chat.thinking is not None:
            variables |= {name: chat.thinking for name in _SWITCHES if name in takes}
        return variables

    def parser(
        self,
        *,
        thinking: bool | None,
        opening: str = "",
        tools: Sequence[Tool] = (),
        parallel: bool = True,
        constrained: bool = False,
        forced: bool = False,
        strict: bool = False,
    ) -> ReplyParser:
        """Return the parser of one answer.

        A thought that leads is split off, of a model that knows no marks too, for others may have taught it.
        Behind text the mark of a thought ends the answer of a model that was not to think: by the request, by
        the prompt, where a thought has ended in it or text begun, or because its template knows no thoughts
        though its vocabulary has the mark.

        thinking: whether the model was asked to think; None: it was left to its template. opening: what the
        answer has begun with in the prompt. tools: that it may call. parallel: more than one at a time.
        constrained: the answer obeys a grammar, in which marks are text. forced: one that allows calls alone.
        strict: behind a call a grammar allows calls alone.
        """
        marks = self.marks or USUAL
        stage = marks.stage(opening)
        if thinking is None:
            thinking = self.marks is None or (self.thinks and stage in ("opening", "thought"))
        named = {tool.name: tool for tool in tools}
        several = parallel and (self.several or not self.native)
        guarded = not (thinking or constrained)
        if marks is HARMONY:
            return HarmonyParser(
                tools=named,
                parallel=several,
                guarded=guarded,
                stage=stage,
                identify=self._identify,
                forced=forced,
                strict=strict,
            )
        return TaggedParser(
            marks=marks,
            calls=self.calls,
            tools=named,
            parallel=several,
            guarded=guarded,
            stage=stage,
            identify=self._identify,
            forced=forced,
            strict=strict,
        )

    def _identify(self) -> str:
        """Return an id for a call."""
        if self.native and self.calls.short_ids:
            return "".join(secrets.choice(_LETTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"

    def thought_first(
        self,
        grammar: Grammar,
        tokenizer: Tokenizer,
        *,
        thinking: bool | None,
        opening: str = "",
        calls: bool = False,
    ) -> Grammar:
        """Return a grammar that lets a thought come first, where the model may think. See `parser`.

        calls: it has the marks that calls begin with. Where answers come in messages, one that has none holds
        for the final one, and one that has holds from the beginning.
        """
        if self.marks is None:
            return grammar
        stage = self.marks.stage(opening)
        if self.marks is HARMONY:
            if calls or stage == "content":
                return grammar
            return ThoughtFirst(grammar, tokenizer, FINAL, begun=True)
        if stage != "thought" and (stage != "opening" or not (self.thinks if thinking is None else thinking)):
            return grammar
        return ThoughtFirst(grammar, tokenizer, self.marks, begun=stage == "thought")

    def may_call_strictly(self, tools: Sequence[Tool], choice: str, answer: Source | None) -> bool:
        """Whether calls obey schemas that an answer may come to, which is free otherwise. See `grammar`."""
        return bool(
            self.calls.leads and choice == "auto" and answer is None and any(tool.strict for tool in tools)
        )

    def calls_behind(self, grammar: Grammar, tokenizer: Tokenizer, opening: str = "") -> Grammar:
        """Return a grammar that holds from the mark of a call on; `grammar` has it. Takes a while.

        opening: as of `parser`; the mark may stand at its end.
        """

        def ids(text: str) -> list[int]:
            parts = cut_at(self.specials, text)
            known = self.specials
            return [id for one in parts for id in ([known[one]] if one in known else encode(one))]

        encode = tokenizer.encode_part
        leads = {mark: ids(lead) for mark, lead in self.calls.leads.items()}
        return CallsBehind(grammar, tokenizer, leads, self._answered(opening))

    def _answered(self, opening: str) -> str:
        """Return what of an opening is no thought, with the beginning of a message where there are such."""
        if self.marks is None:
            return opening
        if self.marks is HARMONY:
            return _ASSISTANT + opening
        return "" if self.marks.stage(opening) == "thought" else opening.rpartition(self.marks.end)[2]

    def grammar(
        self, tools: Sequence[Tool], choice: str, *, parallel: bool, answer: Source | None = None
    ) -> Source | None:
        """Return what an answer obeys, thoughts left out; None where it is free.

        choice: "auto", "none", "required" or the name of a tool. answer: what it obeys where it is no call.
        Where it may call strictly, it is what calls obey.
        Raises InvalidRequestError as `call_grammar` does. Takes time with large schemas.
        """
        free = choice == "auto" and answer is None and not self.may_call_strictly(tools, choice, answer)
        if not tools or choice == "none" or free:
            return answer
        named = [tool for tool in tools if tool.name == choice]
        return call_grammar(
            self.calls,
            self.specials,
            named or tools,
            several=parallel and not named and (self.several or not self.native),
            answer=answer if choice == "auto" else None,
        )


def _continued(render: Callable[..., str], messages: Sequence[Message]) -> Rendered:
    """Return the prompt that ends with the last message's text, and that text.

    The template writes the message with a word behind its text that nobody has said, where it is then cut.
    """
    *before, last = messages
    end = secrets.token_hex(16)
    text = str(last["content"])
    prompt, found, _ = render(
        [*before, {**last, "content": text + end}], add_generation_prompt=False
    ).rpartition(end)
    if not found:
        raise InvalidRequestError(
            "the chat template does not write the last message as it is, so the answer cannot go on from it; "
            "end with a message of the user",
            param="messages",
        )
    return Rendered(prompt, text)
