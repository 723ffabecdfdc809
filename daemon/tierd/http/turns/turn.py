"""A turn of a chat as it is asked for, whichever API asks.

An API's own module makes a `Turn` of its body. `turns` opens a conversation of it, which yields the pieces of
the answers (`conversation`); the module makes JSON of them, whole (`whole`) or framed (`sse`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tierd.chat.grammar import Source
from tierd.chat.tools import Tool
from tierd.http.requests import Generation


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
