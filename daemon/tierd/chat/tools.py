"""Tools that a model may call: as its template takes them, or told in the words of the generic way.

The generic way is for templates that know no tools: what there is to call stands in the system message, a
call is written as `GENERIC` says, and what comes back is a message of the user's. Between the two are
templates that know calls and results, and leave it to the system message to say what there is to call.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tierd.chat.calls import GENERIC, CallSyntax

Message = Mapping[str, object]

# What stands in the place of arguments that are no JSON, as where a model was cut off.
_UNREAD = "raw_arguments"
# Levels of lists and objects.
MAX_DEPTH = 64

_OBJECT = {"type": "object", "properties": dict[str, object]()}
# Keys of a schema with which an object may have properties that `properties` does not name.
_OPEN_ENDED = (
    "additionalProperties", "patternProperties", "unevaluatedProperties",
    "$ref", "allOf", "anyOf", "oneOf", "if",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a client offers. parameters: JSON Schema of its arguments, which are an object.

    strict: they obey it although the model may also answer otherwise, where it writes calls in a way that can
    be held to that.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, object] = field(default_factory=dict)
    strict: bool = False

    @property
    def schema(self) -> dict[str, object]:
        """The schema of its arguments, with the two keys that templates count on."""
        given = dict(self.parameters)
        for key, value in _OBJECT.items():
            given.setdefault(key, value)
        return given

    @property
    def closed_schema(self) -> dict[str, object]:
        """The same, closed: arguments that it does not name are of no use, unless it says of what form."""
        if any(key in self.parameters for key in _OPEN_ENDED):
            return self.schema
        return {**self.schema, "additionalProperties": False}

    def told(self) -> dict[str, object]:
        """Return it as templates take tools, in OpenAI's shape."""
        function: dict[str, object] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.schema
        return {"type": "function", "function": function}


def native(
    messages: Sequence[Message],
    *,
    objects: bool,
    several: bool,
    thoughts: str,
    beside: bool = True,
    nulls: bool = False,
) -> list[dict[str, object]]:
    """Return messages as a template takes them that knows tools.

    objects: arguments are to be objects, not JSON text. several: a message may have more than one call.
    thoughts: the key for what an assistant has thought. beside: it may be there beside text and calls.
    nulls: a message of calls alone has null for its text.
    A tool's message gets the name of the tool whose call it answers.
    """
    names: dict[object, object] = {}
    given = []
    for message in _arranged(messages, several=several):
        calls = _calls(message)
        mine = _thought(message, thoughts if beside or not (calls and message["content"]) else "")
        if calls:
            names |= {call["id"]: call["function"]["name"] for call in calls}
            mine["tool_calls"] = [_with_objects(call) if objects else call for call in calls]
            mine["content"] = message["content"] or (None if nulls else "")
        if message["role"] == "tool" and "name" not in mine and message.get("tool_call_id") in names:
            mine["name"] = names[message["tool_call_id"]]
        given.append(mine)
    return given


def _thought(message: Message, key: str) -> dict[str, object]:
    mine = dict(message)
    thought = mine.pop("reasoning_content", None)
    if thought is not None and key:
        mine[key] = thought
    return mine


def _calls(message: Message) -> Sequence[Mapping[str, Any]]:
    calls = message.get("tool_calls", ())
    assert isinstance(calls, Sequence)
    return calls


def _arranged(messages: Sequence[Message], *, several: bool) -> Iterator[Message]:
    """Go through messages with results in the order of their calls, for few templates look at ids.

    several: a message may have more than one call; else each call has one, and its result behind it.
    """
    place = 0
    while place < len(messages):
        message, begin = messages[place], place + 1
        place = next((i for i in range(begin, len(messages)) if messages[i]["role"] != "tool"), len(messages))
        calls = _calls(message)
        left = dict(enumerate(messages[begin:place]))
        answers: defaultdict[object, deque[int]] = defaultdict(deque)
        for index, result in left.items():
            answers[result.get("tool_call_id")].append(index)
        if several or len(calls) < 2:
            yield message
        for index, call in enumerate(calls):
            if not several and len(calls) > 1:
                rest = {"role": message["role"], "content": ""}
                yield {**(rest if index else message), "tool_calls": [call]}
            if answers[call["id"]]:
                yield left.pop(answers[call["id"]].popleft())
        yield from left.values()


def _with_objects(call: Mapping[str, Any]) -> dict[str, object]:
    """Return a call whose arguments are an object; the text of what is none is all that it has."""
    function = dict(call["function"])
    text = function["arguments"]
    try:
        arguments = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        arguments = None
    known = isinstance(arguments, dict) and is_shallow(arguments)
    function["arguments"] = arguments if known else {_UNREAD: text}
    return {**call, "function": function}


def is_shallow(value: object) -> bool:
    """Whether JSON is of MAX_DEPTH levels at most, as what becomes part of a prompt must be."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner: list[object] = []
        for each in level:
            if isinstance(each, Mapping):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        level = [each for each in inner if isinstance(each, Mapping | list)]
        if not level:
            return True
    return False


_TOLD = """You may call functions. These are there, each as JSON with the schema of its parameters:
{tools}
To call one, write its name and its arguments as JSON, in this way and with nothing behind it:
{example}
{several} {results}Call a function only where it is of use; otherwise answer in plain words."""
_SEVERAL = "For several calls write several such blocks."
_ONE = "Write one call at a time."
_RESULTS = "The result comes to you between <tool_response> and </tool_response>. "
_RESULT = "<tool_response>\n{}\n</tool_response>"


def tell(
    messages: list[dict[str, object]],
    tools: Sequence[Tool],
    syntax: CallSyntax,
    *,
    parallel: bool,
    system: bool,
    results: str = "",
) -> None:
    """Have a conversation begin with what tools there are, and how to call them.

    system: the template knows system messages; else that stands before the first message of the user.
    results: a sentence on where they come.
    """
    listed = "\n".join(json.dumps(tool.told()["function"], ensure_ascii=False) for tool in tools)
    example = f'{syntax.first}{syntax.before}{{"PARAMETER": VALUE}}{syntax.after}{syntax.last}'
    several = _SEVERAL if parallel else _ONE
    told = _TOLD.format(tools=listed, example=example, several=several, results=results)
    _add_system(messages, told, system=system)


def generic(
    messages: Sequence[Message], tools: Sequence[Tool], *, parallel: bool, system: bool, thoughts: str
) -> list[dict[str, object]]:
    """Return messages for a template that knows no tools: what concerns them is written into the texts.

    system: as of `tell`. thoughts: as of `native`. Results, and what the user says behind them, are one
    message, for there are templates that want roles to alternate.
    """
    given = [_thought(message, thoughts) for message in _arranged(messages, several=True)]
    if tools:
        tell(given, tools, GENERIC, parallel=parallel, system=system, results=_RESULTS)
    plain: list[dict[str, object]] = []
    results: list[str] = []

    def close_results() -> None:
        if results:
            plain.append({"role": "user", "content": "\n".join(results)})
            results.clear()

    for message in given:
        if message["role"] == "tool":
            results.append(_RESULT.format(message["content"]))
            continue
        if results and message["role"] == "user":
            results.append(str(message["content"]))
            close_results()
            continue
        close_results()
        if calls := _calls(message):
            written = [message["content"], *(_written(call) for call in calls)]
            message = {"role": message["role"], "content": "\n".join(str(text) for text in written if text)}
        plain.append(message)
    close_results()
    return plain


def _add_system(messages: list[dict[str, object]], text: str, *, system: bool) -> None:
    """Put a text at the end of the system message, or before the user's first where there is to be none."""
    if messages and messages[0]["role"] == "system":
        messages[0]["content"] = f"{messages[0]['content']}\n\n{text}"
    elif system:
        messages.insert(0, {"role": "system", "content": text})
    else:
        first = next((m for m in messages if m["role"] == "user"), None)
        if first is None:
            messages.insert(0, {"role": "user", "content": text})
        else:
            first["content"] = f"{text}\n\n{first['content']}"


def _written(call: Mapping[str, Any]) -> str:
    """Return a call as the generic way has it."""
    function = _with_objects(call)["function"]
    assert isinstance(function, dict)
    body = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"
