"""Anthropic's messages, as its official client sees them and byte by byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anthropic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat import templates
from http_streams import read_until, unchunk
from live import LONG_WAIT_S, Gated, Live, serve, wait_until
from live_script import ScriptedBackend
from tierd.http import sse
from tierd.http.errors import ErrorDetail
from tierd.http.messages.errors import MessagesDialect
from tierd.http.messages.requests import MessagesBody
from tierd.settings import ModelSettings
from tiny import write_llama

PATH = "/v1/messages"
USER = {"role": "user", "content": "Look at me and you."}
LOOK = {
    "name": "look",
    "description": "Looks.",
    "input_schema": {
        "type": "object",
        "properties": {"at": {"enum": ["me", "you"]}, "long": {"type": "boolean"}},
        "required": ["at"],
    },
}
CLOCK = {"name": "clock", "input_schema": {"type": "object"}}
TOOLS = {"tools": [LOOK, CLOCK]}
ME = '<tool_call>\n{"name": "look", "arguments": {"at": "me"}}\n</tool_call>'
YOU = ME.replace('"me"', '"you"')
THINKING = {"type": "enabled", "budget_tokens": 30}
# What the script begins anew with once the thought was ended for it.
SAYS = "abcdefghij</think>So."
MODELS = {
    "hermes": templates.HERMES,
    "llama": templates.LLAMA3,
    "mistral": templates.MISTRAL_LIST,
    "gpt-oss": templates.GPT_OSS,
    "gemma": templates.GEMMA,
}


def client_of(live: Live) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0, timeout=LONG_WAIT_S)


class Speaking:
    """A server, Anthropic's client of it, and what its models are to say."""

    def __init__(self, live: Live, client: anthropic.Anthropic, backend: ScriptedBackend) -> None:
        self.live = live
        self.client = client
        self.backend = backend

    def message(self, says: str, **fields: Any) -> anthropic.types.Message:
        """Return an answer, which is the same when it is streamed, ids left out."""
        self.backend.says = says
        arguments: dict[str, Any] = {"model": "hermes", "max_tokens": 200, "messages": [USER]} | fields
        arguments["extra_body"] = {"temperature": 0} | arguments.get("extra_body", {})
        whole = self.client.messages.create(**arguments)
        with self.client.messages.stream(**arguments) as stream:
            streamed = stream.get_final_message()
        assert _plain(streamed) == _plain(whole)
        return whole

    def blocks(self, says: str, **fields: Any) -> list[tuple[Any, ...]]:
        """Return the blocks of an answer."""
        return blocks_of(self.message(says, **fields))

    def count(self, **fields: Any) -> int:
        body: dict[str, Any] = {"model": "hermes", "messages": [USER]} | fields
        return self.client.messages.count_tokens(**body).input_tokens


def blocks_of(message: anthropic.types.Message) -> list[tuple[Any, ...]]:
    """Return the blocks of an answer: type, and what is in it."""
    found: list[tuple[Any, ...]] = []
    for block in message.content:
        match block.type:
            case "text":
                found.append(("text", block.text))
            case "thinking":
                found.append(("thinking", block.thinking))
            case "tool_use":
                found.append(("tool_use", block.name, block.input))
    assert len(found) == len(message.content)
    return found


def _plain(message: anthropic.types.Message) -> tuple[Any, ...]:
    """Return what of an answer is always the same; one that is broken off may have had more tokens."""
    assert message.id.startswith("msg_")
    ids = [block.id for block in message.content if block.type == "tool_use"]
    assert len({*ids}) == len(ids)
    usage = message.usage
    signatures = [block.signature for block in message.content if block.type == "thinking"]
    return (
        (message.type, message.role, message.model),
        (message.stop_reason, message.stop_sequence),
        (blocks_of(message), signatures),
        usage.input_tokens + (usage.cache_read_input_tokens or 0),
    )


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    folder = tmp_path_factory.mktemp("messages")
    path = write_llama(folder / "tiny.gguf", context=2048)
    models = []
    for name, text in (MODELS | {"r1": templates.R1}).items():
        template = folder / f"{name}.jinja"
        template.write_text(text.strip("\n"))
        models.append(ModelSettings(id=name, path=path, streams=4, chat_template=template))
    models[0] = replace(models[0], default=True)
    backend = ScriptedBackend()
    with serve(models, backend=backend) as live, client_of(live) as client:
        yield Speaking(live, client, backend)


def test_a_message_has_anthropics_shape(speaking: Speaking) -> None:
    speaking.backend.says = "So."
    body = {"model": "hermes", "max_tokens": 9, "messages": [USER]}
    response = speaking.live.post(PATH, body)
    answer = response.json()
    tokens = answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"]
    assert answer == {
        "id": f"msg_{response.headers['request-id']}",
        "type": "message",
        "role": "assistant",
        "model": "hermes",
        "content": [{"type": "text", "text": "So."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": answer["usage"]["input_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": answer["usage"]["cache_read_input_tokens"],
            "output_tokens": 4,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }
    assert tokens == speaking.count()
    again = speaking.live.post(PATH, body).json()["usage"]
    assert (again["input_tokens"], again["cache_read_input_tokens"]) == (1, tokens - 1)


def test_a_stream_is_these_frames(speaking: Speaking) -> None:
    speaking.backend.says = "So."
    body = {"model": "hermes", "max_tokens": 9, "messages": [USER], "stream": True}
    speaking.live.post(PATH, body)
    response = speaking.live.post(PATH, body)
    cached = speaking.count() - 1
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    start, *middle, delta, stop, nothing = response.text.split("\n\n")
    usage = '"cache_creation_input_tokens":0,"cache_read_input_tokens":'
    assert start.startswith(
        f'event: message_start\ndata: {{"type":"message_start","message":{{"id":"msg_'
        f'{response.headers["request-id"]}","type":"message","role":"assistant","model":"hermes",'
        f'"content":[],"stop_reason":null,"stop_sequence":null,"usage":{{"input_tokens":1,{usage}{cached},'
    )
    block = 'event: content_block_{0}\ndata: {{"type":"content_block_{0}","index":0'
    assert middle == [
        block.format("start") + ',"content_block":{"type":"text","text":""}}',
        *(
            block.format("delta") + f',"delta":{{"type":"text_delta","text":"{letter}"}}}}'
            for letter in "So."
        ),
        block.format("stop") + "}",
    ]
    assert delta.startswith(
        'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn",'
        f'"stop_sequence":null}},"usage":{{"input_tokens":1,{usage}{cached},"output_tokens":4,'
    )
    assert (stop, nothing) == ('event: message_stop\ndata: {"type":"message_stop"}', "")


def test_why_an_answer_ends_is_said(speaking: Speaking) -> None:
    cut = speaking.message("One two three.", max_tokens=7)
    assert (cut.content[0].text, cut.stop_reason, cut.stop_sequence) == ("One two", "max_tokens", None)
    stopped = speaking.message("One STO two STOP three", stop_sequences=["three", "STOP"])
    assert stopped.content[0].text == "One STO two "
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "STOP")
    ended = speaking.message("One STO", stop_sequences=["STOP"])
    assert (ended.content[0].text, ended.stop_reason) == ("One STO", "end_turn")
    assert speaking.message("STOP", stop_sequences=["STOP"]).content == []


def test_a_stop_behind_the_end_of_an_answer_did_not_end_it(speaking: Speaking) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    says = f"{ME}\nand on and on and on and STOP"
    answer = speaking.message(says, tool_choice=choice, stop_sequences=["STOP"], **TOOLS)
    assert (answer.stop_reason, answer.stop_sequence) == ("tool_use", None)
    wait_until(lambda: speaking.live.engine.snapshot.models["hermes"].running == 0)


def test_an_answer_goes_on_from_what_the_assistant_has_begun(speaking: Speaking) -> None:
    begun = {"role": "assistant", "content": [{"type": "text", "text": "The best is ("}]}
    assert speaking.blocks("B)", messages=[USER, begun]) == [("text", "B)")]
    grown = speaking.count(messages=[USER, begun]) - speaking.count()
    tokens = speaking.live.post("/tokenize", {"content": "The best is ("}).json()["tokens"]
    assert grown == len(tokens)


def test_thoughts_are_blocks_and_are_counted(speaking: Speaking) -> None:
    says = "<think>Why?</think>So."
    answer = speaking.message(says, thinking=THINKING)
    assert blocks_of(answer) == [("thinking", "Why?"), ("text", "So.")]
    assert len(answer.content[0].signature) == 44
    assert answer.usage.output_tokens == len(says) + 1
    raw = speaking.live.post(PATH, {"max_tokens": 99, "messages": [USER]}).json()
    assert raw["usage"]["output_tokens_details"] == {"thinking_tokens": len("<think>Why?</think>")}
    assert speaking.blocks("So.", thinking={"type": "disabled"}) == [("text", "So.")]
    assert speaking.count(thinking={"type": "disabled"}) > speaking.count(thinking={"type": "adaptive"})


def test_a_thought_ends_where_its_budget_does(speaking: Speaking) -> None:
    def blocks(tokens: int, model: str = "r1", says: str = SAYS) -> list[tuple[Any, ...]]:
        return speaking.blocks(
            says, model=model, thinking={"type": "enabled", "budget_tokens": tokens}, tools=[LOOK]
        )

    assert blocks(4) == [("thinking", "abcd"), ("text", SAYS)]
    assert blocks(40) == [("thinking", "abcdefghij"), ("text", "So.")]
    hidden = "<|channel|>analysis<|message|>"
    assert blocks(3, "gpt-oss", f"{hidden}abcd")[0][1].rstrip() == "ab"


def test_who_cannot_think_is_not_asked_to(speaking: Speaking) -> None:
    for ask in (speaking.message, lambda says, **fields: speaking.count(**fields)):
        with pytest.raises(anthropic.BadRequestError, match="'gemma' is no model that thinks"):
            ask("So.", model="gemma", thinking=THINKING)
    assert speaking.blocks("So.", model="gemma", thinking={"type": "disabled"}) == [("text", "So.")]


def test_calls_stand_where_the_model_wrote_them(speaking: Speaking) -> None:
    says = f"<think>Hm.</think>Let me see.\n{ME}\n{YOU}\nSo."
    look = ("tool_use", "look")
    expected = [
        ("thinking", "Hm."),
        ("text", "Let me see."),
        (*look, {"at": "me"}),
        (*look, {"at": "you"}),
        ("text", "So."),
    ]
    assert speaking.blocks(says, **TOOLS) == expected
    assert speaking.message(says, **TOOLS).stop_reason == "tool_use"
    assert speaking.blocks(f"{ME}\n{YOU}", **TOOLS) == expected[2:4]
    one = {"type": "auto", "disable_parallel_tool_use": True}
    assert speaking.blocks(f"{ME}\n{YOU}", tool_choice=one, **TOOLS) == expected[2:3]
    assert speaking.blocks(ME, tool_choice={"type": "none"}, **TOOLS) == [("text", ME)]
    wait_until(lambda: speaking.live.engine.snapshot.models["hermes"].running == 0)


def test_a_call_that_is_cut_off_has_what_is_whole_of_it(speaking: Speaking) -> None:
    says = ME.replace('"me"', '"me", "long": true')
    for end, known in (('"me"', {}), ('"long"', {"at": "me"}), ("true", {"at": "me"})):
        answer = speaking.message(says, max_tokens=says.index(end), **TOOLS)
        (call,) = answer.content
        assert isinstance(call, anthropic.types.ToolUseBlock)
        assert (call.input, answer.stop_reason) == (known, "max_tokens")


def test_a_call_that_is_no_json_has_what_is_whole_before(speaking: Speaking) -> None:
    says = ME.replace('"me"', '"me", "long": yes')
    assert speaking.blocks(says, **TOOLS) == [("tool_use", "look", {"at": "me"})]


def test_a_strict_call_obeys_its_schema_where_it_is_chosen(speaking: Speaking) -> None:
    says = "Let me see.\n" + ME.replace('"me"', '"them"')
    assert speaking.blocks(says, **TOOLS)[1] == ("tool_use", "look", {"at": "them"})
    one = {"type": "auto", "disable_parallel_tool_use": True}
    text, (kind, name, given) = speaking.blocks(says, tools=[{**LOOK, "strict": True}], tool_choice=one)
    assert text == ("text", "Let me see.")
    assert (kind, name) == ("tool_use", "look")
    assert given["at"] in ("me", "you")


@pytest.mark.parametrize("model", MODELS)
def test_a_call_can_be_forced(speaking: Speaking, model: str) -> None:
    choice = {"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    ((kind, name, given),) = speaking.blocks("No.", model=model, tool_choice=choice, **TOOLS)
    assert (kind, name) == ("tool_use", "look")
    assert given["at"] in ("me", "you")
    choice = {"type": "any", "disable_parallel_tool_use": True}
    ((_, name, _),) = speaking.blocks("No.", model=model, tool_choice=choice, **TOOLS)
    assert name in ("look", "clock")


def test_tools_are_run_though_no_thread_is_kept(speaking: Speaking) -> None:
    """Anthropic's client asks for one, and then does without."""
    looked = []

    @anthropic.beta_tool
    def look(at: str) -> str:
        """Looks."""
        looked.append(at)
        speaking.backend.says = "A face."
        return "a face"

    speaking.backend.says = ME
    runner = speaking.client.beta.messages.tool_runner(
        model="hermes", max_tokens=200, messages=[USER], tools=[look], extra_body={"temperature": 0}
    )
    assert [message.stop_reason for message in runner] == ["tool_use", "end_turn"]
    assert looked == ["me"]
    body = {"max_tokens": 9, "messages": [USER], "thread": {"type": "create"}}
    answer = speaking.live.post(PATH, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}


def test_models_are_listed_and_shown(speaking: Speaking) -> None:
    found = {model.id: model for model in speaking.client.models.list()}
    assert found.keys() == {*MODELS, "r1"}
    shown = speaking.client.models.retrieve("hermes")
    assert shown == found["hermes"]
    assert (shown.type, shown.display_name, shown.max_input_tokens) == ("model", "hermes", 2048)
    assert shown.created_at.year > 2020


@pytest.mark.parametrize("model", MODELS)
def test_a_tools_result_goes_into_the_next_prompt(speaking: Speaking, model: str) -> None:
    """Just as it does where the conversation comes in OpenAI's shape."""
    choice = {"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    answer = speaking.message("No.", model=model, tool_choice=choice, **TOOLS)
    (call,) = answer.content
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "a face"}]}
    messages = [
        USER,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    arguments = json.dumps(call.input)
    same = [
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": call.id, "type": "function", "function": {"name": "look", "arguments": arguments}}
            ],
        },
        {"role": "tool", "tool_call_id": call.id, "content": "a face"},
    ]
    functions = [
        {"type": "function", "function": {"name": tool["name"], "parameters": tool["input_schema"]}}
        for tool in TOOLS["tools"]
    ]
    functions[0]["function"]["description"] = "Looks."  # type: ignore[index]
    body = {"model": model, "messages": same, "tools": functions}
    prompt = speaking.live.post("/apply-template", body).json()["prompt"]
    tokens = speaking.live.post("/tokenize", {"content": prompt, "model": model}).json()["tokens"]
    assert abs(speaking.count(model=model, messages=messages, **TOOLS) - len(tokens)) <= 1  # <bos>
    assert speaking.blocks("A face.", model=model, messages=messages, **TOOLS) == [("text", "A face.")]


def test_an_answer_obeys_a_schema(speaking: Speaking) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    config = {"format": {"type": "json_schema", "schema": schema | {"additionalProperties": False}}}
    ((_, text),) = speaking.blocks("No.", extra_body={"output_config": config})
    assert json.loads(text)["a"] in (1, 2)


def test_counting_counts_all_that_makes_the_prompt(speaking: Speaking) -> None:
    counts = [speaking.count(), speaking.count(system="Be brief."), speaking.count(**TOOLS)]
    assert counts == sorted(counts)
    assert len({*counts}) == 3
    fields = {"system": "Be brief.", **TOOLS}
    usage = speaking.message("So.", **fields).usage
    assert speaking.count(**fields) == usage.input_tokens + usage.cache_read_input_tokens
    much = [{"role": "user", "content": "word " * 3000}]
    assert speaking.count(messages=much) > 2048
    with pytest.raises(anthropic.BadRequestError, match="send it in parts"):
        speaking.count(messages=[{"role": "user", "content": "x" * (1 << 20)}])


def test_headers_and_what_the_path_asks_for_change_nothing(speaking: Speaking) -> None:
    speaking.backend.says = "So."
    body = json.dumps({"max_tokens": 9, "messages": [USER], "ignore_eos": False}).encode()
    for headers in ({}, {"x-api-key": "k", "anthropic-version": "2023-06-01"}, {"authorization": "Bearer k"}):
        response = speaking.live.http.post(PATH, content=body, headers=headers)
        assert response.json()["content"] == [{"type": "text", "text": "So."}]
    answer = speaking.client.beta.messages.create(
        model="hermes", max_tokens=9, messages=[USER], betas=["token-counting-2024-11-01"]
    )
    assert answer.content[0].text == "So."


def test_errors_arrive_as_the_clients_own(speaking: Speaking) -> None:
    with pytest.raises(anthropic.NotFoundError, match="models served: gemma, gpt-oss, hermes") as unknown:
        speaking.message("So.", model="claude")
    assert unknown.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as bad:
        speaking.message("So.", messages=[{"role": "user", "content": [{"type": "image"}]}])
    assert bad.value.body == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "messages[0].content[0].type: 'image' is not supported here; send text or tool_result",
        },
        "request_id": bad.value.request_id,
    }
    with pytest.raises(anthropic.BadRequestError, match="more than the context"):
        speaking.message("So.", max_tokens=2048)


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "kind"),
    [
        ("POST", PATH, b"{", 400, "invalid_request_error"),
        ("POST", f"{PATH}/count_tokens", b"{}", 400, "invalid_request_error"),
        ("GET", PATH, b"", 405, "invalid_request_error"),
        ("GET", f"{PATH}/batches", b"", 404, "not_found_error"),
        ("POST", PATH, b" " * ((8 << 20) + 1), 413, "request_too_large"),
    ],
)
def test_all_errors_have_anthropics_shape(
    live: Live, method: str, path: str, content: bytes, status: int, kind: str
) -> None:
    response = live.http.request(method, path, content=content)
    body = response.json()
    assert response.status_code == status
    assert response.headers["request-id"] == response.headers["x-request-id"] == body["request_id"]
    assert list(body) == ["type", "error", "request_id"]
    assert (body["type"], body["error"]["type"], list(body["error"])) == ("error", kind, ["type", "message"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(("text", "thinking", "tool_use", "tool_result", "image")) | JSON},
    optional={
        "text": st.text(max_size=5) | JSON,
        "thinking": st.text(max_size=5) | JSON,
        "id": st.just("a"),
        "name": st.just("look"),
        "input": st.dictionaries(st.text(max_size=4), JSON, max_size=2),
        "tool_use_id": st.just("a"),
        "content": st.text(max_size=5) | JSON,
    },
)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(("user", "assistant", "system", "tool")),
        "content": st.text(max_size=5) | st.lists(BLOCK, max_size=3) | JSON,
    }
)
FIELDS = sorted({*MessagesBody.__struct_fields__} - {"messages", "model"})


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    path=st.sampled_from((PATH, f"{PATH}/count_tokens")),
    messages=st.lists(MESSAGE, max_size=4) | JSON,
    fields=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=2),
)
def test_no_body_is_ever_the_servers_fault(
    live: Live, path: str, messages: object, fields: dict[str, object]
) -> None:
    response = live.post(path, {"max_tokens": 2, "messages": messages} | fields)
    if response.status_code != 200:
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (408, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_errors_have_a_type_for_their_status(status: int, kind: str) -> None:
    body = MessagesDialect("r").body(status, ErrorDetail("no", "other", "a", "b"))
    assert body == b'{"type":"error","error":{"type":"%s","message":"no"},"request_id":"r"}' % kind.encode()


def test_a_quiet_stream_is_kept_open_with_pings(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.02)
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    with gated.live.send(PATH, {"messages": [USER], "max_tokens": 2, "stream": True}) as connection:
        before = read_until(connection, ping + b"\r\n")
        assert b"event: message_start\n" in before
        assert b"content_block" not in before
        read_until(connection, ping + b"\r\n")
        gated.gate.open()
        rest = read_until(connection, b"\r\n0\r\n\r\n")
    assert rest.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n\r\n0\r\n\r\n')


def test_an_error_in_a_stream_is_its_last_event(gated: Gated) -> None:
    body = {"messages": [USER], "max_tokens": 99, "stream": True, "ignore_eos": True}
    with gated.live.send(PATH, body) as connection:
        gated.gate.step(8)
        data = read_until(connection, b"text_delta")
        gated.gate.error = ValueError("out of smoke")
        gated.gate.open()
        data = read_until(connection, b"\r\n0\r\n\r\n", data)
    head, _, rest = data.partition(b"\r\n\r\n")
    *_, last, nothing = unchunk(rest).split(b"\n\n")
    assert nothing == b""
    name, _, line = last.partition(b"\ndata: ")
    assert name == b"event: error"
    error = json.loads(line)
    assert list(error) == ["type", "error", "request_id"]
    assert (error["type"], error["error"]["type"]) == ("error", "api_error")
    assert "out of smoke" in error["error"]["message"]
    assert f"request-id: {error['request_id']}".encode() in head


def test_it_arrives_as_an_exception(gated: Gated) -> None:
    with client_of(gated.live) as client:
        gated.gate.step(8)
        stream = client.messages.create(
            model="tiny", max_tokens=99, messages=[USER], stream=True, extra_body={"ignore_eos": True}
        )
        assert next(stream).type == "message_start"
        gated.gate.error = ValueError("the device caught fire")
        gated.gate.open()
        with pytest.raises(anthropic.APIStatusError, match="caught fire"):
            list(stream)
