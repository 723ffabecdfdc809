"""Calls of tools, as the official client sees them and byte by byte."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any

import pytest

from chat import templates
from live import Live, serve, wait_until
from live_script import ScriptedBackend
from schemas import record
from tierd.settings import ModelSettings
from tiny import write_llama

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "Look at me and you."}
LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {
            "type": "object",
            "properties": {"at": {"enum": ["me", "you"]}, "long": {"type": "boolean"}},
            "required": ["at"],
            "additionalProperties": False,
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
TOOLS = {"tools": [LOOK, CLOCK]}
STRICT = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in (LOOK, CLOCK)]
ME = '<tool_call>\n{"name": "look", "arguments": {"at": "me"}}\n</tool_call>'
YOU = ME.replace('"me"', '"you"')
MODELS = {
    "hermes": templates.HERMES,
    "llama": templates.LLAMA3,
    "mistral": templates.MISTRAL_LIST,
    "gpt-oss": templates.GPT_OSS,
    "gemma": templates.GEMMA,
}


class Speaking:
    """A server, and what its models are to say."""

    def __init__(self, live: Live, backend: ScriptedBackend) -> None:
        self.live = live
        self.backend = backend

    def choices(self, says: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the choices of an answer, which are the same when they are streamed; ids left out."""
        self.backend.says = says
        arguments: dict[str, Any] = {"model": "hermes", "messages": [USER], "temperature": 0} | TOOLS | fields
        with self.live.client() as client:
            whole = client.chat.completions.create(**arguments)
            streamed = _joined(client.chat.completions.create(**arguments, stream=True))
        found = [_plain(choice) for choice in whole.choices]
        assert [streamed[index] for index in range(len(found))] == found
        return found

    def calls(self, says: str, **fields: Any) -> list[tuple[str, Any]]:
        """Return the calls of an answer that is nothing else: name and arguments of each."""
        (choice,) = self.choices(says, **fields)
        assert choice["content"] is None
        assert choice["reason"] == "tool_calls"
        return [(name, json.loads(arguments)) for name, arguments in choice["calls"]]


def _joined(chunks: Iterable[Any]) -> dict[int, dict[str, Any]]:
    """Return the choices of a stream."""
    found: dict[int, dict[str, Any]] = defaultdict(lambda: {"content": None, "calls": [], "reason": None})
    for chunk in chunks:
        (piece,) = chunk.choices
        mine = found[piece.index]
        mine["content"] = (mine["content"] or "") + (piece.delta.content or "") or None
        mine["reason"] = piece.finish_reason
        for call in piece.delta.tool_calls or []:
            if call.id is not None:
                assert call.index == len(mine["calls"])
                mine["calls"].append((call.function.name, ""))
            name, arguments = mine["calls"][call.index]
            mine["calls"][call.index] = (name, arguments + (call.function.arguments or ""))
    return found


def _plain(choice: Any) -> dict[str, Any]:
    calls = choice.message.tool_calls or []
    assert len({call.id for call in calls}) == len(calls)
    assert all(call.type == "function" for call in calls)
    return {
        "content": choice.message.content or None,
        "calls": [(call.function.name, call.function.arguments) for call in calls],
        "reason": choice.finish_reason,
    }


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    folder = tmp_path_factory.mktemp("tools")
    path = write_llama(folder / "tiny.gguf", context=2048)
    models = []
    for name, text in MODELS.items():
        template = folder / f"{name}.jinja"
        template.write_text(text.strip("\n"))
        models.append(ModelSettings(id=name, path=path, streams=4, chat_template=template))
    backend = ScriptedBackend()
    with serve(models, backend=backend) as live:
        yield Speaking(live, backend)


def test_a_call_is_found_among_text(speaking: Speaking) -> None:
    assert speaking.choices(f"Let me see.\n{ME}\n") == [
        {"content": "Let me see.", "calls": [("look", '{"at": "me"}')], "reason": "tool_calls"}
    ]


def test_calls_in_parallel_and_one_at_a_time(speaking: Speaking) -> None:
    both = f"{ME}\n{YOU}"
    assert speaking.calls(both) == [("look", {"at": "me"}), ("look", {"at": "you"})]
    assert speaking.calls(both, parallel_tool_calls=False) == [("look", {"at": "me"})]
    wait_until(lambda: speaking.live.engine.snapshot.models["hermes"].running == 0)


def test_strict_calls_obey_their_schema_where_they_are_chosen(speaking: Speaking) -> None:
    says = "Let me see <tool_calls>.\n" + ME.replace('"me"', '"them", "why": 1')
    (plain,) = speaking.choices(says)
    assert plain["calls"] == [("look", '{"at": "them", "why": 1}')]
    (choice,) = speaking.choices(says, tools=STRICT)
    assert (choice["content"], choice["reason"]) == ("Let me see <tool_calls>.", "tool_calls")
    ((name, arguments),) = choice["calls"]
    assert (name, json.loads(arguments)["at"]) in (("look", "me"), ("look", "you"))
    assert "why" not in json.loads(arguments)
    both = f"{ME}\n{YOU}"
    assert speaking.calls(both, tools=STRICT) == [("look", {"at": "me"}), ("look", {"at": "you"})]
    assert speaking.calls(both, tools=STRICT, parallel_tool_calls=False) == [("look", {"at": "me"})]
    for text in ("So.", "<tool_cal", "<think>\nWhy?\n</think>\n\nSo."):
        assert speaking.choices(text, tools=STRICT) == speaking.choices(text)
    (after,) = speaking.choices(f"<think>\nWhy?\n</think>\n\n{says}", tools=STRICT)
    assert after["content"] == choice["content"]
    assert all(json.loads(arguments)["at"] in ("me", "you") for _, arguments in after["calls"])


def test_strict_calls_of_each_family(speaking: Speaking) -> None:
    listed = '[TOOL_CALLS][{"name": "look", "arguments": {"at": "them"}}]'
    for model, says in (("mistral", listed), ("gemma", ME.replace('"me"', '"them"'))):
        ((name, given),) = speaking.calls(says, model=model, tools=STRICT, parallel_tool_calls=False)
        assert name == "look"
        assert given["at"] in ("me", "you")
    call = '{"name": "look", "parameters": {"at": "them"}}'
    assert speaking.calls(call, model="llama", tools=STRICT) == [("look", {"at": "them"})]
    channel = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": "them"}<|call|>'
    for model, says in (("llama", f"<|python_tag|>{call}"), ("gpt-oss", channel)):
        ((name, given),) = speaking.calls(says, model=model, tools=STRICT, parallel_tool_calls=False)
        assert (name, given["at"]) in (("look", "me"), ("look", "you"))


def test_each_family_has_its_way(speaking: Speaking) -> None:
    call = '{"name": "look", "parameters": {"at": "me"}}'
    me = [("look", {"at": "me"})]
    assert speaking.calls(call, model="llama") == me
    assert speaking.calls(f"<|python_tag|>{call}", model="llama") == me
    listed = '[TOOL_CALLS][{"name": "look", "arguments": {"at": "me"}}, {"name": "clock", "arguments": {}}]'
    assert speaking.calls(listed, model="mistral") == [*me, ("clock", {})]
    channel = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": "me"}<|call|>'
    assert speaking.calls(channel, model="gpt-oss") == me
    assert speaking.calls(ME, model="gemma") == me


def test_what_is_no_call_stays_text(speaking: Speaking) -> None:
    for text in (
        ME.replace("look", "listen"),
        "<tool_call>look at me</tool_call>",
        '<tool_call>{"name": "look"',
        '{"name": "look", "arguments": {}}',
        "<tool_call>",
    ):
        assert speaking.choices(text) == [{"content": text, "calls": [], "reason": "stop"}]
    assert speaking.choices(ME, tool_choice="none")[0]["content"] == ME
    assert speaking.choices(ME, tools=[])[0]["content"] == ME


def test_a_call_that_is_cut_off_says_so(speaking: Speaking) -> None:
    cut = ME.index('me"}')
    (choice,) = speaking.choices(ME, max_tokens=cut)
    assert choice == {"content": None, "calls": [("look", '{"at": "')], "reason": "length"}


def test_every_choice_has_calls_of_its_own(speaking: Speaking) -> None:
    choices = speaking.choices(ME, n=3)
    assert [choice["calls"] for choice in choices] == [[("look", '{"at": "me"}')]] * 3
    assert [choice["reason"] for choice in choices] == ["tool_calls"] * 3


def test_streamed_calls_have_openais_shape(speaking: Speaking) -> None:
    speaking.backend.says = f"{ME}\n{YOU}"
    body = {"model": "hermes", "messages": [USER], "stream": True} | TOOLS
    frames = speaking.live.post(CHAT, body).text.split("\n\n")
    deltas = [json.loads(frame[6:])["choices"][0]["delta"] for frame in frames[:-2]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all(list(delta) == ["tool_calls"] and len(delta["tool_calls"]) == 1 for delta in deltas[1:-1])
    calls = [delta["tool_calls"][0] for delta in deltas[1:-1]]
    for index, at in enumerate(("me", "you")):
        first, *rest = (call for call in calls if call["index"] == index)
        assert list(first) == ["index", "id", "type", "function"]
        assert first["type"] == "function"
        assert first["function"] == {"name": "look", "arguments": ""}
        assert all(call == {"index": index, "function": call["function"]} for call in rest)
        assert all(list(call["function"]) == ["arguments"] for call in rest)
        assert "".join(call["function"]["arguments"] for call in rest) == f'{{"at": "{at}"}}'
        assert len(rest) > 5
    assert [call["index"] for call in calls] == sorted(call["index"] for call in calls)


def test_text_alone_has_log_probabilities(speaking: Speaking) -> None:
    speaking.backend.says = f"<think>a</think>See: {ME}"
    body = {"model": "hermes", "messages": [USER], "logprobs": True, "temperature": 0} | TOOLS
    choice = speaking.live.post(CHAT, body).json()["choices"][0]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == list("See:")


@pytest.mark.parametrize("model", MODELS)
def test_a_call_can_be_forced(speaking: Speaking, model: str) -> None:
    fields = {"model": model, "max_tokens": 200, "parallel_tool_calls": False}
    ((name, arguments),) = speaking.calls("No.", tool_choice="required", **fields)
    assert name in ("look", "clock")
    assert name == "clock" or arguments["at"] in ("me", "you")
    named = {"type": "function", "function": {"name": "look"}}
    ((name, arguments),) = speaking.calls("No.", tool_choice=named, **fields)
    assert name == "look"
    assert arguments["at"] in ("me", "you")
    assert isinstance(arguments.get("long", False), bool)


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_forced_call_obeys_its_schema_strict_or_not(speaking: Speaking, strict: bool | None) -> None:
    schema = record(day={"type": "string", "format": "date"}, count={"type": "integer", "enum": [3, 4]})
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": strict}}
    fields = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    ((name, arguments),) = speaking.calls("No.", **fields)
    assert name == "f"
    assert date.fromisoformat(arguments["day"])
    assert arguments["count"] in (3, 4)


def test_some_of_the_tools_can_be_allowed(speaking: Speaking) -> None:
    def allowed(mode: str, name: str) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": name}}]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}

    one = {"parallel_tool_calls": False, "tool_choice": allowed("required", "clock")}
    assert speaking.calls("No.", **one) == [("clock", {})]
    assert speaking.choices(ME, tool_choice=allowed("auto", "clock"))[0]["content"] == ME
    assert speaking.calls(ME, tool_choice=allowed("auto", "look")) == [("look", {"at": "me"})]


@pytest.mark.parametrize("model", MODELS)
def test_calls_and_results_go_into_the_next_prompt(speaking: Speaking, model: str) -> None:
    speaking.backend.says = "No."
    named = {"type": "function", "function": {"name": "look"}}
    first = {"model": model, "messages": [USER], "tool_choice": named} | TOOLS
    message = speaking.live.post(CHAT, first).json()["choices"][0]["message"]
    (call,) = message["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "a face"}
    body = {"model": model, "messages": [USER, message, result]} | TOOLS
    prompt = speaking.live.post("/apply-template", body).json()["prompt"]
    assert "a face" in prompt[prompt.index(call["function"]["arguments"]) :]
    assert speaking.live.post(CHAT, body | {"max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("arguments", ["", "no JSON", "7", "[" * 9999, '{"a":' * 300 + "1" + "}" * 300])
def test_whatever_a_model_has_called_with_can_be_told(speaking: Speaking, arguments: str) -> None:
    function = {"name": "look", "arguments": arguments}
    calling = {
        "role": "assistant",
        "tool_calls": [{"id": "abcdef123", "type": "function", "function": function}],
    }
    for model in MODELS:
        body = {"model": model, "messages": [USER, calling]} | TOOLS
        response = speaking.live.post("/apply-template", body)
        assert response.status_code in (200, 400), response.text


def test_a_tool_whose_schema_is_none_is_refused(speaking: Speaking) -> None:
    broken = {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"a": {"type": "x"}}}},
    }
    body = {"model": "hermes", "messages": [USER], "tools": [broken], "tool_choice": "required"}
    status, error = speaking.live.refusal(CHAT, body)
    assert (status, error["param"]) == (400, "tools")


@pytest.mark.parametrize(
    "schema", ["[", "[]", "7", "true", "[" * 9999, '{"items":' * 400 + '{"format":"date"}' + "}" * 400]
)
def test_a_format_that_is_no_schema_is_refused_beside_tools(speaking: Speaking, schema: str) -> None:
    body = {"model": "hermes", "messages": [USER], "guided_json": schema} | TOOLS
    status, error = speaking.live.refusal(CHAT, body)
    assert (status, error["param"]) == (400, "guided_json")


def test_an_answer_is_in_its_format_or_a_call(speaking: Speaking) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [12, 34]}}}
    (choice,) = speaking.choices(ME, response_format=format, parallel_tool_calls=False)
    assert choice["calls"] == [("look", '{"at": "me"}')]
    (choice,) = speaking.choices("12", response_format=format)
    assert choice == {"content": "12", "calls": [], "reason": "stop"}


def test_a_stop_string_inside_a_call_is_no_call(speaking: Speaking) -> None:
    """One behind a whole call is."""
    (choice,) = speaking.choices(ME, stop=['"me"'])
    assert (choice["calls"], choice["reason"]) == ([("look", '{"at": ')], "stop")
    (choice,) = speaking.choices(f"{ME}\nbye", stop=["bye"])
    assert (choice["calls"], choice["reason"]) == ([("look", '{"at": "me"}')], "tool_calls")
