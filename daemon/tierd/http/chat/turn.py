"""From the body of a chat completion to a Turn; every error names the field at fault."""

from __future__ import annotations

from collections.abc import Sequence

from tierd.chat.tools import Tool
from tierd.errors import InvalidRequestError
from tierd.http.encoder import Encoder
from tierd.http.generation import translate
from tierd.http.generation.formats import source
from tierd.http.requests import AllowedTools, CallGiven, ChatBody, Message, ToolChoice, ToolGiven
from tierd.http.turns.fields import (
    check_choice,
    check_depth,
    check_effort,
    few_texts,
    find_tool,
    needed,
    read_tools,
    tool_of,
)
from tierd.http.turns.turn import Turn
from tierd.http.unsupported import refuse_unsupported

# OpenAI treats a developer's message as a system message where a model knows only the latter.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
# Variables of templates that have fields of their own, or come from the model.
_OTHERS = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")


async def take_turn(encoder: Encoder, body: ChatBody) -> Turn:
    """Return what a body asks for, as `read_turn` does; of one that may be long in a thread."""
    extras = body.tools or body.documents or body.chat_template_kwargs
    if few_texts(body.messages) and not extras:
        return read_turn(body)
    return await encoder.run_in_thread(lambda: read_turn(body))


def read_turn(body: ChatBody) -> Turn:
    """Return what a body asks for.

    A last message of the assistant's is the beginning of the answer, as with llama.cpp's server, unless
    add_generation_prompt is true, or both it and continue_final_message are false, which mean what they mean
    to vLLM. Raises InvalidRequestError.
    """
    refuse_unsupported(body)
    max_tokens, tokens_field = translate.asked_tokens(body)
    offered, choice = choose(body.tool_choice, read_tools(body.tools or (), _tool, inside=".function"))
    variables = _variables(body)
    thinking = variables.get("enable_thinking", variables.get("thinking"))
    continues, opens = _ending(body)
    return Turn(
        generation=body,
        messages=messages(body.messages),
        max_tokens=max_tokens,
        tokens_field=tokens_field,
        tools=offered,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        format=source(body),
        thinking=thinking if isinstance(thinking, bool) else None,
        effort=check_effort(body.reasoning_effort, "reasoning_effort"),
        template_variables=variables,
        continues=continues,
        opens=opens,
        top_logprobs=translate.top_logprobs(body),
    )


def messages(given: Sequence[Message]) -> list[dict[str, object]]:
    """Return a conversation in the shape that Turn has it. Raises InvalidRequestError."""
    if not given:
        raise InvalidRequestError("messages: empty; send at least one", param="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(given)]


def _message(message: Message, where: str) -> dict[str, object]:
    refuse_unsupported(message, where + ".")
    if message.role not in ROLES:
        raise InvalidRequestError(
            f"{where}.role: no such role, {message.role!r}; use {', '.join(ROLES)}", param=f"{where}.role"
        )
    plain: dict[str, object] = {"role": ROLES[message.role], "content": _content(message, where)}
    if message.name is not None:
        plain["name"] = message.name
    if message.role == "assistant":
        thought = message.reasoning_content or message.reasoning
        if thought:
            plain["reasoning_content"] = thought
        if message.tool_calls:
            plain["tool_calls"] = [
                _call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)
            ]
    elif message.tool_calls:
        raise InvalidRequestError(
            f"{where}.tool_calls: only in messages of the assistant", param=f"{where}.tool_calls"
        )
    if message.role == "tool":
        if message.tool_call_id is None:
            raise InvalidRequestError(
                f"{where}.tool_call_id is missing; it says which call this answers",
                param=f"{where}.tool_call_id",
            )
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _call(call: CallGiven, where: str) -> dict[str, object]:
    if call.type != "function" or call.function is None:
        raise InvalidRequestError(
            f"{where}.type: {call.type!r} is not supported; send calls of functions", param=f"{where}.type"
        )
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _content(message: Message, where: str) -> str:
    """Return a message's text. Parts are joined by line breaks, as llama.cpp and vLLM join them.

    The assistant's may have none where it thought, called or refused.
    """
    where += ".content"
    if message.content is None:
        answered = (message.tool_calls, message.reasoning_content, message.reasoning, message.refusal)
        if message.role == "assistant" and any(answered):
            return message.refusal or ""
        raise InvalidRequestError(f"{where} is missing", param=where)
    if isinstance(message.content, str):
        return message.content
    texts = []
    for i, part in enumerate(message.content):
        refused = message.role == "assistant" and part.type == "refusal"
        if part.type != "text" and not refused:
            raise InvalidRequestError(
                f"{where}[{i}].type: {part.type!r} is not supported; send text", param=f"{where}[{i}].type"
            )
        text = part.refusal if refused else part.text
        texts.append(needed(text, f"{where}[{i}].{part.type}"))
    return "\n".join(texts)


def _tool(given: ToolGiven, where: str) -> Tool:
    if given.type != "function":
        raise InvalidRequestError(
            f"{where}.type: {given.type!r} is not supported; send functions", param=f"{where}.type"
        )
    where += ".function"
    function = needed(given.function, where)
    return tool_of(function.name, function.description, function.parameters, function.strict, where)


def choose(choice: str | ToolChoice | None, offered: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], str]:
    """Return the tools that may be called, and the choice among them as Turn has it.

    Raises InvalidRequestError.
    """
    field = "tool_choice"
    if isinstance(choice, ToolChoice):
        if choice.type == "allowed_tools" and choice.allowed_tools is not None:
            return _allowed(choice.allowed_tools, offered, f"{field}.allowed_tools")
        if choice.type != "function" or choice.function is None:
            raise InvalidRequestError(
                f"{field}.type: {choice.type!r} is not supported; name a function", param=f"{field}.type"
            )
        return offered, find_tool(choice.function.name, offered, f"{field}.function.name").name
    return offered, check_choice(choice, offered)


def _allowed(allowed: AllowedTools, offered: tuple[Tool, ...], field: str) -> tuple[tuple[Tool, ...], str]:
    """Return some of the tools, and whether one of them must be called."""
    if allowed.mode not in ("auto", "required"):
        raise InvalidRequestError(
            f"{field}.mode: no such mode, {allowed.mode!r}; use auto or required", param=f"{field}.mode"
        )
    if not allowed.tools:
        raise InvalidRequestError(f"{field}.tools: empty; name at least one", param=f"{field}.tools")
    left: dict[str, Tool] = {}
    for i, one in enumerate(allowed.tools):
        where = f"{field}.tools[{i}]"
        if one.type != "function" or one.function is None:
            raise InvalidRequestError(
                f"{where}.type: {one.type!r} is not supported; name a function", param=f"{where}.type"
            )
        tool = find_tool(one.function.name, offered, f"{where}.function.name")
        left[tool.name] = tool
    return tuple(left.values()), allowed.mode


def _variables(body: ChatBody) -> dict[str, object]:
    """Return what the template is to know beside messages and tools."""
    field = "chat_template_kwargs"
    variables = body.chat_template_kwargs or {}
    check_depth(variables, field)
    for name in _OTHERS:
        if name in variables:
            raise InvalidRequestError(
                f"{field}.{name}: the request's own field or the model says what it is; leave it out here",
                param=f"{field}.{name}",
            )
    for name in ("enable_thinking", "thinking"):
        if not isinstance(variables.get(name, False), bool):
            raise InvalidRequestError(f"{field}.{name}: must be true or false", param=f"{field}.{name}")
    if body.documents:
        check_depth(body.documents, "documents")
        return {**variables, "documents": body.documents}
    return dict(variables)


def _ending(body: ChatBody) -> tuple[bool, bool]:
    """Return whether the answer goes on from the last message, and whether the template opens it."""
    last = body.messages[-1] if body.messages else None
    resumable = last is not None and last.role == "assistant" and not last.tool_calls
    if body.continue_final_message:
        field = "continue_final_message"
        if body.add_generation_prompt:
            raise InvalidRequestError(f"{field}: not together with add_generation_prompt", param=field)
        if not resumable:
            raise InvalidRequestError(f"{field}: the last message is no text of the assistant's", param=field)
        return True, False
    if body.add_generation_prompt is None and body.continue_final_message is None and resumable:
        return True, False
    return False, body.add_generation_prompt is not False
