"""From the body of a request for a response to a Turn. Pure; every error names the field at fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tierd.chat.grammar import Source
from tierd.chat.tools import Tool
from tierd.engine import CatalogueEntry
from tierd.errors import InvalidRequestError
from tierd.http.generation.formats import check_format, source
from tierd.http.responses.input import messages
from tierd.http.responses.requests import ChoiceGiven, FunctionOffered, ResponsesBody, TextFormat
from tierd.http.responses.shapes import Item, ReasoningEffect, ResponseObject, TextEffect
from tierd.http.turns.fields import (
    check_choice,
    check_depth,
    check_effort,
    find_tool,
    needed,
    read_tools,
    tool_of,
)
from tierd.http.turns.turn import Turn
from tierd.http.unsupported import refuse_unsupported

LOGPROBS = "message.output_text.logprobs"


def check(body: ResponsesBody) -> None:
    """Raise InvalidRequestError for what tierd does not have, or what does not go together."""
    refuse_unsupported(body)
    if body.text is not None:
        refuse_unsupported(body.text, "text.")
    if body.max_tokens is not None:
        raise InvalidRequestError("max_tokens: not supported; send max_output_tokens", param="max_tokens")
    if body.n not in (None, 1):
        raise InvalidRequestError(f"n: {body.n}; a response has one answer", param="n")
    if body.background and body.store is False:
        raise InvalidRequestError(
            "background: only where the response is stored; leave store out", param="background"
        )


def read_turn(body: ResponsesBody, before: Sequence[Item], given: Sequence[Item]) -> Turn:
    """Return what a body asks for.

    before: what the response that it goes on from had and gave. given: its own input.
    Raises InvalidRequestError.
    """
    offered = read_tools(body.tools or (), _tool)
    callable, choice = _choice(body.tool_choice, offered)
    return Turn(
        generation=body,
        messages=messages(body.instructions, before, given),
        messages_field="input",
        max_tokens=body.max_output_tokens,
        tokens_field="max_output_tokens",
        tools=callable,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        format=source(body, *_formats(None if body.text is None else body.text.format)),
        effort=check_effort(None if body.reasoning is None else body.reasoning.effort, "reasoning.effort"),
        top_logprobs=(body.top_logprobs or 0) if LOGPROBS in (body.include or ()) else None,
    )


def head(body: ResponsesBody, id: str, created: int, entry: CatalogueEntry) -> ResponseObject:
    """Return the response before it has begun: it repeats what was asked for, or else what holds then."""
    return ResponseObject(
        id=id,
        created_at=created,
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        model=entry.id,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=ReasoningEffect(None if body.reasoning is None else body.reasoning.effort),
        safety_identifier=body.safety_identifier,
        store=body.store is not False,
        temperature=entry.sampling.temperature if body.temperature is None else body.temperature,
        text=TextEffect((body.text and body.text.format) or TextFormat("text")),
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        top_logprobs=body.top_logprobs or 0,
        top_p=entry.sampling.top_p if body.top_p is None else body.top_p,
        user=body.user,
        metadata=body.metadata or {},
    )


def _tool(given: FunctionOffered, where: str) -> Tool:
    if given.type != "function":
        raise InvalidRequestError(
            f"{where}.type: {given.type!r} is not supported; send functions", param=f"{where}.type"
        )
    return tool_of(
        needed(given.name, f"{where}.name"), given.description, given.parameters, given.strict, where
    )


def _choice(choice: str | ChoiceGiven | None, offered: Sequence[Tool]) -> tuple[tuple[Tool, ...], str]:
    """Return the tools that may be called, and the choice as Turn has it."""
    field = "tool_choice"
    every = tuple(offered)
    if isinstance(choice, ChoiceGiven):
        if choice.type == "function":
            return every, find_tool(choice.name or "", offered, f"{field}.name").name
        if choice.type != "allowed_tools":
            raise InvalidRequestError(
                f"{field}.type: {choice.type!r} is not supported; name a function", param=f"{field}.type"
            )
        allowed = {
            find_tool((one.type == "function" and one.name) or "", offered, f"{field}.tools[{i}].name").name
            for i, one in enumerate(choice.tools or ())
        }
        every, choice = tuple(tool for tool in every if tool.name in allowed), choice.mode
    return every, check_choice(choice, every)


def _formats(wanted: TextFormat | None) -> Iterator[Source]:
    """Return what `text.format` says that the answer must obey."""
    field = "text.format"
    if wanted is None or wanted.type == "text":
        return
    check_format(wanted.type, f"{field}.type")
    if wanted.type == "json_object":
        yield Source("json_object", "", field)
        return
    field += ".schema"
    schema = needed(wanted.schema, field)
    check_depth(schema, field)
    yield Source("json_schema", msgspec.json.encode(schema).decode(), field)
