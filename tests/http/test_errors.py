"""Whatever is sent, the answer is a success or an error of OpenAI's shape that names the field."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from live import Gated, Live, error_of, serve
from tierd import errors
from tierd.engine import queue
from tierd.errors import ExecutorError, InvalidRequestError, UnavailableError
from tierd.http import body as body_module
from tierd.http import sse
from tierd.http.errors import ErrorBoundary, ErrorDetail, describe, route_error
from tierd.http.requests import ChatBody, CompletionBody
from tierd.settings import LimitsSettings, ModelSettings

HI = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def tool(name: str, parameters: object = None) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def choice(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *tools: dict[str, object]) -> dict[str, object]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def deep(levels: int) -> dict[str, object]:
    return {"a": deep(levels - 1)} if levels else {}


TOOL = tool("f")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [1]}, "messages[0]"),
        (CHAT, {"messages": [{"content": "hi"}]}, "messages[0].role"),
        (CHAT, {"messages": [*HI, {"role": "judge", "content": "hi"}]}, "messages[1].role"),
        (CHAT, {"messages": [{"role": "tool", "content": "hi"}]}, "messages[0].tool_call_id"),
        (CHAT, {"messages": [{"role": "function", "name": "f", "content": "hi"}]}, "messages[0].role"),
        (CHAT, {"messages": [*HI, {"role": "assistant"}]}, "messages[1].content"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "", "tool_calls": [CALL]}]},
            "messages[0].tool_calls",
        ),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages[0].content[0].type"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
        ),
        (
            CHAT,
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].id",
        ),
        (CHAT, {"model": 7}, "model"),
        (CHAT, {"model": "plain"}, "model"),
        (CHAT, {"stream": "yes"}, "stream"),
        (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, {"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"max_tokens": "many"}, "max_tokens"),
        (CHAT, {"max_completion_tokens": -1}, "max_completion_tokens"),
        (CHAT, {"temperature": -0.1}, "temperature"),
        (CHAT, {"temperature": "hot"}, "temperature"),
        (CHAT, {"top_p": 1.5}, "top_p"),
        (CHAT, {"priority": 101}, "priority"),
        (TEXT, {"priority": "high"}, "priority"),
        (CHAT, {"top_k": -2}, "top_k"),
        (CHAT, {"top_k": 2**63}, "top_k"),
        (CHAT, {"skip_special_tokens": False}, "skip_special_tokens"),
        (CHAT, {"truncate_prompt_tokens": 8}, "truncate_prompt_tokens"),
        (CHAT, {"min_p": 2}, "min_p"),
        (CHAT, {"seed": 0.5}, "seed"),
        (CHAT, {"seed": 2**64}, "seed"),
        (CHAT, {"stop": ""}, "stop"),
        (CHAT, {"stop": ["a", ""]}, "stop[1]"),
        (CHAT, {"stop": ["a", 1]}, "stop[1]"),
        (CHAT, {"stop": ["a"] * 17}, "stop"),
        (TEXT, {"prompt": None}, "prompt"),
        (TEXT, {"prompt": ""}, "prompt"),
        (TEXT, {"prompt": []}, "prompt"),
        (TEXT, {"prompt": [""]}, "prompt[0]"),
        (TEXT, {"prompt": [[]]}, "prompt[0]"),
        (TEXT, {"prompt": ["a"] * 257}, "prompt"),
        (TEXT, {"prompt": ["a"] * 129, "n": 2}, "prompt"),
        (TEXT, {"prompt": ["a" * 200, "b" * (1 << 20)]}, "prompt"),
        (TEXT, {"prompt": ["a", "b", ""]}, "prompt[2]"),
        (TEXT, {"prompt": [[1], [2, 301]]}, "prompt[1][1]"),
        (TEXT, {"prompt": [1, "a"]}, "prompt[0]"),
        (TEXT, {"prompt": ["a", 1]}, "prompt[1]"),
        (TEXT, {"prompt": ["a", None]}, "prompt[1]"),
        (TEXT, {"prompt": [[1], ["a"]]}, "prompt[1][0]"),
        (TEXT, {"prompt": [1, True]}, "prompt[1]"),
        (TEXT, {"prompt": [1, -1]}, "prompt[1]"),
        (TEXT, {"prompt": [[1, 301]]}, "prompt[0][1]"),
        (TEXT, {"logprobs": 21}, "logprobs"),
        (TEXT, {"logprobs": -1}, "logprobs"),
        (TEXT, {"logprobs": True}, "logprobs"),
        (TEXT, {"echo": "yes"}, "echo"),
        (CHAT, {"echo": True}, "echo"),
        (TEXT, {"max_tokens": 0}, "max_tokens"),
        (TEXT, {"max_tokens": 0, "echo": False}, "max_tokens"),
        (TEXT, {"max_tokens": -1, "echo": True}, "max_tokens"),
        (TEXT, {"prompt_logprobs": 1}, "prompt_logprobs"),
        (TEXT, {"prompt": [[1] * 200] * 100, "echo": True, "logprobs": 20}, "logprobs"),
        (TEXT, {"suffix": "!"}, "suffix"),
        (TEXT, {"best_of": 2}, "best_of"),
        (TEXT, {"n": 2, "best_of": 3}, "best_of"),
        (TEXT, {"n": 2, "best_of": 1}, "best_of"),
        (CHAT, {"n": 17}, "n"),
        (CHAT, {"n": 0}, "n"),
        (CHAT, {"n": 1.5}, "n"),
        (
            CHAT,
            {"messages": [{"role": "assistant", "tool_calls": [CALL | {"type": "custom"}]}]},
            "messages[0].tool_calls[0].type",
        ),
        (CHAT, {"tools": [{"type": "function"}]}, "tools[0].function"),
        (CHAT, {"tools": [TOOL | {"type": "custom"}]}, "tools[0].type"),
        (CHAT, {"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        (CHAT, {"tools": [TOOL] * 129}, "tools"),
        (CHAT, {"tools": [tool("two words")]}, "tools[0].function.name"),
        (CHAT, {"tools": [tool("required")]}, "tools[0].function.name"),
        (CHAT, {"tools": [tool("f", deep(70))]}, "tools[0].function.parameters"),
        (CHAT, {"tools": [tool("f", 7)]}, "tools[0].function.parameters"),
        (CHAT, {"tool_choice": "required"}, "tool_choice"),
        (CHAT, {"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        (CHAT, {"tools": [TOOL], "tool_choice": choice("g")}, "tool_choice.function.name"),
        (CHAT, {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        (
            CHAT,
            {"tools": [TOOL], "tool_choice": allowed("none", choice("f"))},
            "tool_choice.allowed_tools.mode",
        ),
        (CHAT, {"tools": [TOOL], "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        (
            CHAT,
            {"tools": [TOOL], "tool_choice": allowed("auto", {"type": "custom"})},
            "tool_choice.allowed_tools.tools[0].type",
        ),
        (
            CHAT,
            {"tools": [TOOL], "tool_choice": allowed("auto", choice("f"), choice("g"))},
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        (CHAT, {"tools": [TOOL], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        (CHAT, {"functions": [{}]}, "functions"),
        (CHAT, {"function_call": "auto"}, "function_call"),
        (CHAT, {"reasoning_effort": "much"}, "reasoning_effort"),
        (CHAT, {"include_reasoning": False}, "include_reasoning"),
        (CHAT, {"documents": [{"text": "a"}]}, "documents"),
        (CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        (CHAT, {"chat_template_kwargs": {"x": deep(70)}}, "chat_template_kwargs"),
        (
            CHAT,
            {"chat_template_kwargs": {"enable_thinking": "no"}},
            "chat_template_kwargs.enable_thinking",
        ),
        (CHAT, {"continue_final_message": True}, "continue_final_message"),
        (
            CHAT,
            {
                "messages": [{"role": "assistant", "content": "a"}],
                "continue_final_message": True,
                "add_generation_prompt": True,
            },
            "continue_final_message",
        ),
        (CHAT, {"response_format": {"type": "xml"}}, "response_format.type"),
        (CHAT, {"logprobs": 3}, "logprobs"),
        (CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"top_logprobs": 3, "logprobs": False}, "top_logprobs"),
        (CHAT, {"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        (CHAT, {"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        (CHAT, {"logit_bias": [[5, 1]]}, "logit_bias"),
        (CHAT, {"logit_bias": {"5": "much"}}, "logit_bias[...]"),
        (CHAT, {"logit_bias": {"5": 100.5}}, "logit_bias"),
        (CHAT, {"logit_bias": {"5": -1e300}}, "logit_bias"),
        (CHAT, {"logit_bias": {"301": 1}}, "logit_bias"),
        (CHAT, {"logit_bias": {"-1": 1}}, "logit_bias"),
        (CHAT, {"logit_bias": {"05": 1}}, "logit_bias"),
        (CHAT, {"logit_bias": {"the": 1}}, "logit_bias"),
        (CHAT, {"logit_bias": {str(2**70): 1}}, "logit_bias"),
        (CHAT, {"logit_bias": dict.fromkeys(map(str, range(1025)), 1)}, "logit_bias"),
        (CHAT, {"allowed_token_ids": []}, "allowed_token_ids"),
        (TEXT, {"allowed_token_ids": [1, 301]}, "allowed_token_ids[1]"),
        (CHAT, {"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
        (TEXT, {"allowed_token_ids": [2**70]}, "allowed_token_ids[0]"),
        (TEXT, {"allowed_token_ids": [1, "2"]}, "allowed_token_ids[1]"),
        (CHAT, {"allowed_token_ids": [True]}, "allowed_token_ids[0]"),
        (CHAT, {"allowed_token_ids": {"5": 1}}, "allowed_token_ids"),
        (TEXT, {"allowed_token_ids": 5}, "allowed_token_ids"),
        (CHAT, {"allowed_token_ids": [1] * 302}, "allowed_token_ids"),
        (CHAT, {"frequency_penalty": 2.5}, "frequency_penalty"),
        (CHAT, {"presence_penalty": -2.5}, "presence_penalty"),
        (CHAT, {"presence_penalty": "some"}, "presence_penalty"),
        (CHAT, {"repeat_penalty": 0}, "repeat_penalty"),
        (CHAT, {"repeat_penalty": 101}, "repeat_penalty"),
        (CHAT, {"repeat_last_n": -2}, "repeat_last_n"),
        (CHAT, {"repetition_penalty": 1.1}, "repetition_penalty"),
        (CHAT, {"n_probs": 5}, "n_probs"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
        (CHAT, {"audio": {"voice": "x"}}, "audio"),
    ],
)
def test_a_fault_is_a_400_that_names_the_field(
    live: Live, path: str, fields: dict[str, object], param: str
) -> None:
    sound = {"messages": HI} if path == CHAT else {"prompt": "hi"}
    status, error = live.refusal(path, sound | fields)
    assert status == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param in error["message"] or param == "model"


def test_values_that_mean_off_and_harmless_fields_pass(live: Live) -> None:
    off = {
        "tools": [],
        "tool_choice": "none",
        "reasoning_effort": "low",
        "chat_template_kwargs": {"nobody_reads": 1},
        "documents": [],
        "response_format": {"type": "text"},
        "n": 1,
        "logprobs": False,
        "top_logprobs": 0,
        "logit_bias": {},
        "allowed_token_ids": None,
        "frequency_penalty": 0.0,
        "presence_penalty": 0,
        "modalities": ["text"],
        "audio": None,
        "stop": [],
        "seed": None,
        "top_k": 0,
        "min_p": 0,
        "stream": None,
        "stream_options": None,
        "user": "u",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "no_such_field": [{"deep": None}],
    }
    assert live.post(CHAT, {"messages": HI, "max_tokens": 1} | off).status_code == 200
    off = {"prompt": "a", "max_tokens": 1, "best_of": 1, "echo": False, "suffix": "", "logprobs": None}
    assert live.post(TEXT, off).status_code == 200


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"messages": [}',
        b'{"messages": []} x',
        b'{"messages": "\xff"}',
        b'{"messages": [{"role": "user", "content": "\\ud800 alone"}]}',
        b'{"model": NaN}',
        b'{"max_tokens": ' + b"9" * 6000 + b"}",
        b'{"temperature": 1e999}',
        b'{"n": ' + b"[" * 100_000,
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"tools": ' + b'{"a":' * 100_000,
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize", "/apply-template"])
def test_bad_json_is_a_400(live: Live, path: str, content: bytes) -> None:
    status, _ = live.refusal(path, content)
    assert status == 400


def test_a_packed_body_is_refused_as_such(live: Live) -> None:
    content = json.dumps({"messages": HI, "max_tokens": 1}).encode()
    plain = live.http.post(CHAT, content=content, headers={"content-encoding": "identity"})
    assert plain.status_code == 200
    packed = live.http.post(CHAT, content=gzip.compress(content), headers={"content-encoding": "gzip"})
    assert packed.status_code == 400
    assert "Content-Encoding" in error_of(packed)["message"]


def test_an_unknown_model_is_a_404_that_lists_the_names(live: Live) -> None:
    status, error = live.refusal(CHAT, {"model": "gpt-4", "messages": HI})
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "tiny" in error["message"]
    assert "plain" in error["message"]


def test_a_model_without_a_template_says_what_to_do(live: Live) -> None:
    _, error = live.refusal(CHAT, {"model": "plain", "messages": HI})
    assert "chat_template" in error["message"]
    assert "/v1/completions" in error["message"]


def test_a_template_that_raises_is_a_400_with_its_message(tiny_model: ModelSettings, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ raise_exception('roles must alternate') }}")
    with serve([replace(tiny_model, chat_template=template)]) as live:
        for path in (CHAT, "/apply-template"):
            status, error = live.refusal(path, {"messages": HI})
            assert status == 400
            assert "roles must alternate" in error["message"]


def test_more_than_the_context_is_refused_with_both_numbers(live: Live) -> None:
    status, error = live.refusal(TEXT, {"prompt": [1] * 200, "max_tokens": 57})
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert "256" in error["message"]
    assert "257" in error["message"]
    status, error = live.refusal(CHAT, {"messages": [{"role": "user", "content": "a b " * 5000}]})
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")


def test_silence_about_max_tokens_means_all_that_is_left(live: Live, tiny_model: ModelSettings) -> None:
    body = {"prompt": [1] * 200, "ignore_eos": True}
    assert live.post(TEXT, body).json()["usage"]["total_tokens"] == 256
    with serve([tiny_model], limits=LimitsSettings(max_output_tokens=9)) as capped:
        assert capped.post(TEXT, body).json()["usage"]["completion_tokens"] == 9
        status, error = capped.refusal(TEXT, body | {"max_tokens": 10})
        assert (status, error["param"]) == (400, "max_tokens")


def test_a_large_body_is_a_413(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "MAX_BODY_BYTES", 1000)
    status, error = live.refusal("/tokenize", b'{"content": "' + b"a" * 1000 + b'"}')
    assert (status, error["code"]) == (413, "request_too_large")
    with live.connect() as connection:
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"400\r\n" + b"a" * 1024 + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/page/", 404),
        ("GET", "/v2/models", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/health", 405),
        ("GET", "/%F0%28%8C", 404),
    ],
)
def test_unknown_routes_and_methods(live: Live, method: str, path: str, status: int) -> None:
    with live.connect() as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert set(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]) == {"message", "type", "param", "code"}
    assert (b"\r\nallow: " in answer.lower()) == (status == 405)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ExecutorError("the device is lost"), 500),
        (UnavailableError("come back"), 503),
        (KeyError("secret"), 500),
    ],
)
def test_statuses_of_errors(error: Exception, status: int) -> None:
    answer = describe(error)
    assert answer.status == status
    assert ("retry-after" in answer.headers) == (status == 503)
    assert b"secret" not in answer.body


@pytest.mark.parametrize(
    ("path", "fields", "end"),
    [
        (CHAT, b"{secret", "status=400 code=- param=-"),
        (CHAT, {"model": "secret", "messages": HI}, "status=404 code=model_not_found param=model"),
        (TEXT, {"prompt": "secret", "temperature": -1}, "status=400 code=- param=temperature"),
        (TEXT, {"prompt": "secret " * 5000}, "status=400 code=context_length_exceeded param=prompt"),
    ],
)
def test_what_is_refused_before_the_engine_sees_it_is_counted_and_logged_without_its_text(
    live: Live, caplog: pytest.LogCaptureFixture, path: str, fields: object, end: str
) -> None:
    def count() -> float:
        text = live.get("/metrics").text
        line = re.search(r'^tierd_requests_total\{model="-",outcome="refused"\} (.*)$', text, re.MULTILINE)
        return float(line[1]) if line else 0.0

    caplog.set_level(logging.INFO, "tierd")
    before = count()
    response = live.post(path, fields)
    assert response.is_client_error
    assert count() == before + 1
    (line,) = caplog.messages
    assert line == f"request={response.headers['x-request-id']} model=- outcome=refused {end}"


def test_what_the_engine_refuses_is_noted_once(gated: Gated, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tierd")
    refused = UnavailableError("not now")
    with mock.patch.object(queue, "check", side_effect=refused):
        assert gated.live.post(TEXT, {"prompt": "hi"}).status_code == 503
    (line,) = [line for line in caplog.messages if "outcome=" in line]
    assert "model=tiny" in line


def test_what_nobody_expected_is_a_500_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError("a secret")

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(ErrorBoundary(broken))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get("/some/path")

    response = asyncio.run(ask())
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    assert "secret" not in response.text
    (record,) = caplog.records
    assert record.exc_info
    assert response.headers["x-request-id"] in record.message


def test_an_api_words_its_errors_in_its_own_way() -> None:
    class Dialect:
        def body(self, status: int, error: ErrorDetail) -> bytes:
            return json.dumps({"wrong": error.message, "status": status}).encode()

        def frames(self, status: int, error: ErrorDetail) -> bytes:
            return b"event: wrong\n\n"

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith("/stream"):
            await send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
            await send({"type": "http.response.body", "body": b"", "more_body": True})
        if scope["path"].endswith("/route"):
            response = await route_error(Request(scope), HTTPException(404))
            await response(scope, receive, send)
        raise InvalidRequestError("no")

    async def ask(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(
            ErrorBoundary(served, dialects={"/own": lambda id: Dialect()}), raise_app_exceptions=False
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get(path)

    assert asyncio.run(ask("/own/path")).json() == {"wrong": "no", "status": 400}
    assert asyncio.run(ask("/own/stream")).text == "event: wrong\n\n"
    assert asyncio.run(ask("/own/route")).json()["status"] == 404
    assert error_of(asyncio.run(ask("/other")))["message"] == "no"
    assert asyncio.run(ask("/other/stream")).text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.SettingsError("no", key="streams"), 400, "invalid_setting"),
        (errors.ModelError("no"), 422, "model_not_loadable"),
        (errors.ModelFileError("no"), 422, "model_file_damaged"),
        (errors.UnsupportedModelError("no"), 422, "model_not_supported"),
        (errors.UnsupportedCodecError("no"), 422, "model_not_supported"),
        (errors.RequiredTierError("no"), 409, "tier_not_reached"),
        (errors.NoDeviceError("no"), 409, "no_device"),
        (errors.DeviceMemoryError("no"), 409, "no_room"),
        (errors.DeviceLostError("no"), 503, "device_unavailable"),
        (errors.DeviceTimeoutError("no"), 503, "device_unavailable"),
        (errors.ConflictError("no", param="id"), 409, "conflict"),
        (errors.OperationNotFoundError("no"), 404, "operation_not_found"),
        (errors.OrderError("no"), 500, None),
        (errors.StateError("no"), 500, None),
    ],
)
def test_each_kind_of_error_has_its_answer(error: errors.TierdError, status: int, code: str | None) -> None:
    answer = describe(error)
    detail = json.loads(answer.body)["error"]
    assert (answer.status, detail["code"], detail["message"]) == (status, code, "no")
    assert detail["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert ("retry-after" in answer.headers) == (status == 503)
    named = {errors.SettingsError: "streams", errors.ConflictError: "id"}
    assert detail["param"] == named.get(type(error))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "user", "assistant"]) | JSON,
        "content": st.text(max_size=20)
        | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=9)}), max_size=2)
        | JSON,
    },
    optional={"name": JSON, "tool_calls": JSON},
)
FIELDS = sorted({*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__} - {"messages", "prompt"})


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    path=st.sampled_from([CHAT, TEXT, "/tokenize", "/detokenize", "/apply-template"]),
    given_fields=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=2),
    messages=st.lists(MESSAGE, max_size=3) | JSON,
    prompt=st.text(max_size=20) | st.lists(st.integers(-1, 310), max_size=9) | JSON,
    tokens=st.lists(st.integers(-1, 310), max_size=9) | JSON,
)
def test_no_body_is_ever_the_servers_fault(
    live: Live, path: str, given_fields: dict[str, object], messages: object, prompt: object, tokens: object
) -> None:
    body = {"max_tokens": 2, "messages": messages, "prompt": prompt, "content": prompt, "tokens": tokens}
    response = live.post(path, body | given_fields)
    if response.status_code != 200:
        assert response.status_code in (400, 404)
        error_of(response)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    path=st.sampled_from([CHAT, TEXT, "/tokenize"]),
    cuts=st.lists(st.tuples(st.integers(0, 140), st.integers(0, 3), st.binary(max_size=3)), max_size=4),
)
def test_no_bytes_are_ever_the_servers_fault(
    live: Live, path: str, cuts: list[tuple[int, int, bytes]]
) -> None:
    body = json.dumps({"messages": HI, "prompt": "hi", "content": "hi", "max_tokens": 2, "seed": 1}).encode()
    for place, length, replacement in cuts:
        body = body[:place] + replacement + body[place + length :]
    response = live.post(path, body)
    if response.status_code != 200:
        assert response.status_code in (400, 404)
        error_of(response)
