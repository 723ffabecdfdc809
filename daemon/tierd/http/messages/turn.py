"""From the body of a message to a Turn. Pure; every error names the field at fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tierd.chat.grammar import Source
from tierd.chat.tools import Tool
from tierd.errors import InvalidRequestError
from tierd.http.generation import translate
from tierd.http.messages.input import messages
from tierd.http.messages.requests import (
    ChoiceGiven,
    ConversationBody,
    MessagesBody,
    OutputConfig,
    ThinkingGiven,
    ToolGiven,
)
from tierd.http.requests import Generation
from tierd.http.turns.fields import check_depth, check_effort, find_tool, needed, read_tools, tool_of
from tierd.http.turns.turn import Turn
from tierd.http.unsupported import SILENT, refuse_unsupported

_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_CHOICES = ("auto", "any", "tool", "none")
_THINKING = ("enabled", "adaptive", "disabled")


def read_turn(body: MessagesBody) -> Turn:
    """Return what a body asks for. Raises InvalidRequestError."""
    turn = read_conversation(body)
    stops = translate.stop_strings(body.stop_sequences or (), "stop_sequences")
    budget = _budget(body)
    generation = Generation(
        model=body.model,
        stop=list(stops),
        seed=body.seed,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        ignore_eos=body.ignore_eos,
        priority=body.priority,
    )
    return replace(
        turn,
        generation=generation,
        max_tokens=body.max_tokens,
        thought_tokens=budget,
    )


def read_conversation(body: ConversationBody) -> Turn:
    """Return what a body makes the prompt of, and how it may be answered. Raises InvalidRequestError."""
    refuse_unsupported(body)
    offered = read_tools(body.tools or (), _tool)
    given = messages(body.messages, body.system)
    continues = given[-1]["role"] == "assistant"
    config = body.output_config or OutputConfig()
    refuse_unsupported(config, "output_config.")
    return Turn(
        generation=Generation(model=body.model),
        messages=given,
        tools=offered,
        tool_choice=_choice(body.tool_choice, offered),
        parallel_tool_calls=not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        format=_format(config, continues=continues),
        thinking=_thinking(body.thinking, continues=continues),
        effort=check_effort(config.effort, "output_config.effort", _EFFORTS),
        continues=continues,
    )


def _tool(given: ToolGiven, where: str) -> Tool:
    """Return a tool. Examples of its input stand in its schema, where JSON Schema has them."""
    if given.type not in (None, "custom"):
        raise InvalidRequestError(
            f"{where}.type: {given.type!r} is not supported; send tools with an input_schema of their own",
            param=f"{where}.type",
        )
    refuse_unsupported(given, f"{where}.")
    name = needed(given.name, f"{where}.name")
    schema = dict(needed(given.input_schema, f"{where}.input_schema"))
    check_depth(schema, f"{where}.input_schema")
    if given.input_examples:
        check_depth(given.input_examples, f"{where}.input_examples")
        schema["examples"] = given.input_examples
    return tool_of(name, given.description, schema, given.strict, where)


def _choice(given: ChoiceGiven | None, offered: Sequence[Tool]) -> str:
    """Return the choice as Turn has it."""
    if given is None:
        return "auto"
    if given.type not in _CHOICES:
        raise InvalidRequestError(
            f"tool_choice.type: no such choice, {given.type!r}; use {', '.join(_CHOICES)}",
            param="tool_choice.type",
        )
    if given.type == "any" and not offered:
        raise InvalidRequestError("tool_choice: any, but there are no tools", param="tool_choice")
    if given.type != "tool":
        return "required" if given.type == "any" else given.type
    field = "tool_choice.name"
    return find_tool(needed(given.name, field), offered, field).name


def _thinking(given: ThinkingGiven | None, *, continues: bool) -> bool | None:
    """Return whether the model is to think, None where that is left to its template."""
    if given is None:
        return None
    refuse_unsupported(given, "thinking.")
    if given.type not in _THINKING:
        raise InvalidRequestError(
            f"thinking.type: {given.type!r} is not supported; use {', '.join(_THINKING)}",
            param="thinking.type",
        )
    if given.type != "enabled":
        return False if given.type == "disabled" else None
    needed(given.budget_tokens, "thinking.budget_tokens")
    if continues:
        raise InvalidRequestError(
            "thinking: not together with a last message of the assistant's, which has begun to answer",
            param="thinking",
        )
    return True


def _budget(body: MessagesBody) -> int | None:
    """Return how many tokens the model may think in, None where nobody says.

    Anthropic asks for 1024 at least; here there may be fewer.
    """
    if body.thinking is None or body.thinking.type != "enabled":
        return None
    tokens, field = body.thinking.budget_tokens, "thinking.budget_tokens"
    if tokens is not None and tokens >= body.max_tokens:
        raise InvalidRequestError(
            f"{field}: {tokens}; must be less than max_tokens, {body.max_tokens}, which is for thought and "
            "answer together",
            param=field,
        )
    if body.ignore_eos:
        raise InvalidRequestError(f"ignore_eos: not together with {field}", param="ignore_eos")
    return tokens


def _format(config: OutputConfig, *, continues: bool) -> Source | None:
    """Return what the answer must obey."""
    field = "output_config.format"
    if config.format is None:
        return None
    if config.format.type != "json_schema":
        raise InvalidRequestError(
            f"{field}.type: {config.format.type!r} is not supported; use json_schema", param=f"{field}.type"
        )
    if config.format.schema is SILENT:
        raise InvalidRequestError(f"{field}.schema is missing", param=f"{field}.schema")
    if continues:
        raise InvalidRequestError(
            f"{field}: not together with a last message of the assistant's, which would be part of the JSON",
            param=field,
        )
    return Source("json_schema", bytes(config.format.schema).decode(errors="replace"), f"{field}.schema")
