"""What an administrator can have done: models loaded and unloaded, requests admitted or not."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from live import LONG_WAIT_S, error_of, wait_until
from live_admin import Administered, administered, body, status_of
from tierd.errors import RequiredTierError
from tierd.settings import GPUSettings, ModelSettings

HI = {"prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": True}


class Door:
    """Holds those models back that are to be opened with its name, or refuses them."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.error: Exception | None = None
        self._open = threading.Event()

    def __call__(self, model: ModelSettings) -> None:
        if model.id.startswith("slow"):
            self.held.set()
            assert self._open.wait(LONG_WAIT_S)
            self._open.clear()
            self.held.clear()
            error, self.error = self.error, None
            if error is not None:
                raise error

    def open(self, error: Exception | None = None) -> None:
        """Let one pass, or refuse it."""
        assert self.held.wait(LONG_WAIT_S)
        self.error = error
        self._open.set()


@dataclass(frozen=True)
class House:
    """A server of its own, the door to its models, a folder for files, and its models directory."""

    server: Administered
    door: Door
    folder: Path
    models: Path

    def post(self, path: str, body: object = None, **headers: str) -> httpx.Response:
        content = b"" if body is None else json.dumps(body).encode()
        return self.server.unix.post(path, content=content, headers=headers)

    def get(self, path: str) -> Any:
        return body(self.server.unix.get(path))

    def served(self) -> list[str]:
        return [model["id"] for model in self.get("/status")["models"]]

    def ask(self, model: str | None) -> httpx.Response:
        return self.server.live.post("/v1/completions", HI | ({"model": model} if model else {}))

    def follow(self, response: httpx.Response) -> Any:
        """Check that an operation has begun; return its last view."""
        begun = body(response, 202)
        assert response.headers["location"] == f"/operations/{begun['id']}"
        wait_until(lambda: self.get(response.headers["location"])["state"] != "running")
        return self.get(response.headers["location"])


@pytest.fixture(scope="module")
def built(tiny_model: ModelSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("commands")
    models = folder / "data" / "tierd" / "models"
    models.mkdir(parents=True)
    door = Door()
    with (
        pytest.MonkeyPatch.context() as patch,
        administered(
            tiny_model, folder / "admin.sock", before_open=door, gpu=GPUSettings(mode="off")
        ) as server,
    ):
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        server.gate.open()
        yield House(server, door, folder, models)


@pytest.fixture
def house(built: House) -> Iterator[House]:
    """A server of "one" and "two", whatever tests before have done to it."""
    yield built
    there, wanted = set(built.served()), {"one", "two"}
    for model in there - wanted:
        body(built.post("/models/unload?wait=true", {"model": model}))
    for model in wanted - there:
        body(built.post("/models/load?wait=true", {"id": model}))


def test_a_file_is_loaded_and_answers(house: House, tiny_model: ModelSettings) -> None:
    shutil.copy(tiny_model.path, house.models / "other.gguf")
    view = house.follow(house.post("/models/load", {"path": "other.gguf", "streams": 3, "kv_dtype": "f32"}))
    assert (view["kind"], view["model"], view["state"]) == ("load", "other", "done")
    assert view["phases"][0]["name"] == "open"
    (slot,) = (slot for slot in house.get("/slots")["slots"] if slot["id"] == "other")
    assert (slot["path"], slot["streams"], slot["kv_dtype"]) == (str(house.models / "other.gguf"), 3, "f32")
    assert not slot["default"]
    answer = body(house.ask("other"))
    assert answer["model"] == "other"
    assert answer["system_fingerprint"].startswith("fp_")
    assert answer["system_fingerprint"] != body(house.ask("one"))["system_fingerprint"]
    assert body(house.ask("other"))["system_fingerprint"] == answer["system_fingerprint"]


def test_a_model_is_unloaded_and_loaded_again_by_its_name(house: House) -> None:
    fingerprint = body(house.ask("two"))["system_fingerprint"]
    view = house.follow(house.post("/models/unload", {"model": "two"}))
    assert (view["kind"], view["model"], view["state"]) == ("unload", "two", "done")
    status = house.get("/status")
    assert [model["id"] for model in status["models"]] == ["one"]
    assert "two" in status["unloaded"]
    refused = house.ask("two")
    assert (refused.status_code, error_of(refused)["code"]) == (404, "model_not_found")
    assert error_of(refused)["message"] == (
        "the model 'two' is not loaded, an administrator can load it; models served: one"
    )
    for path in ("/models/activate", "/models/unload"):
        refused = house.post(path, {"model": "two"})
        assert (refused.status_code, error_of(refused)["code"]) == (404, "model_not_found")
        assert error_of(refused)["message"] == "the model 'two' is not loaded; load it first"
    for path in ("/v1/models/two", "/v1/models/three"):
        assert house.server.live.get(path).status_code == 404
    assert house.server.live.refusal("/tokenize", {"model": "two", "content": "a"})[0] == 404
    view = body(house.post("/models/load?wait=true", {"id": "two", "weight": 3}))
    assert (view["state"], view["error"]) == ("done", "")
    assert "two" not in house.get("/status")["unloaded"]
    (slot,) = (slot for slot in house.get("/slots")["slots"] if slot["id"] == "two")
    assert slot["streams"] == 2  # as the settings say
    assert body(house.ask("two"))["system_fingerprint"] == fingerprint


def test_the_default_model_stays_the_default_one(house: House) -> None:
    body(house.post("/models/unload?wait=true", {"model": "one"}))
    assert house.ask(None).status_code == 404
    assert "'one' is not loaded" in error_of(house.ask(None))["message"]
    body(house.post("/models/load?wait=true", {"id": "one"}))
    assert body(house.ask(None))["model"] == "one"


def test_a_model_that_was_loaded_later_is_known_by_its_name(house: House, tiny_model: ModelSettings) -> None:
    table = {"path": str(tiny_model.path), "id": "late", "context": 64}
    body(house.post("/models/load?wait=true", table))
    body(house.post("/models/unload?wait=true", {"model": "late"}))
    assert "late" in house.get("/status")["unloaded"]
    body(house.post("/models/load?wait=true", {"id": "late"}))
    (slot,) = (slot for slot in house.get("/slots")["slots"] if slot["id"] == "late")
    assert slot["context"] == 64


def test_another_file_may_take_a_name_that_is_free(house: House, tiny_model: ModelSettings) -> None:
    table = {"id": "moved", "path": str(tiny_model.path), "streams": 3}
    body(house.post("/models/load?wait=true", table))
    body(house.post("/models/unload?wait=true", {"model": "moved"}))
    shutil.copy(tiny_model.path, house.models / "new.gguf")
    body(house.post("/models/load?wait=true", {"id": "moved", "path": "new.gguf"}))
    (slot,) = (slot for slot in house.get("/slots")["slots"] if slot["id"] == "moved")
    assert (slot["path"], slot["streams"]) == (str(house.models / "new.gguf"), 8)


@pytest.mark.parametrize(
    ("path", "content", "status", "param", "message"),
    [
        ("/models/load", {}, 400, "id", "it takes the `id` of a model"),
        ("/models/load", {"id": "none"}, 404, "id", "there is no model 'none' to load; known: one, two"),
        ("/models/load", {"id": "one"}, 409, "id", "a model called 'one' is loaded already"),
        ("/models/load", {"path": "x.gguf", "id": "two"}, 409, "id", "a model called 'two' is loaded"),
        ("/models/load", {"path": "x", "activate": 1}, 400, "activate", "activate must be true or false"),
        ("/models/load", {"path": "x", "contxt": 1}, 400, "contxt", "contxt is not a setting; did you mean"),
        ("/models/load", {"path": "x", "default": True}, 400, "default", "default is not a setting"),
        ("/models/load", {"path": "x", "streams": 0}, 400, "streams", "streams must lie between 1 and 1024"),
        ("/models/load", {"path": "x", "pin": "yes"}, 400, "pin", "pin must be true or false, not 'yes'"),
        ("/models/load", {"path": "x", "id": "a b"}, 400, "id", "id must be a name of 1 to 128 printable"),
        ("/models/load", {"path": 7}, 400, "path", "path must be a path in quotes, not 7"),
        ("/models/load", {"path": "x", "require": "resident"}, 400, "require", "'x' cannot be resident"),
        ("/models/load", [1], 400, None, "the body: expected `object`, got `array`"),
        ("/models/unload", {}, 400, "model", "model is missing"),
        ("/models/unload", {"model": 1}, 400, "model", "model: expected `str`, got `int`"),
        ("/models/unload", {"model": "one", "limit": 1}, 400, None, "the body: object contains unknown"),
        ("/models/unload", {"model": "one", "limit_s": -1}, 400, "limit_s", "limit_s: expected `float` >= 0"),
        ("/models/unload", {"model": "one", "limit_s": "1"}, 400, "limit_s", "limit_s: expected `float | nu"),
        ("/models/unload", {"model": "no"}, 404, "model", "there is no model 'no'; models served: one, two"),
        ("/models/activate", {"model": "no"}, 404, "model", "there is no model 'no'; models served: one"),
        ("/models/activate", {"model": "one", "now": 1}, 400, None, "the body: object contains unknown"),
        ("/drain", {"limit_s": 1}, 400, None, "the body: object contains unknown field `limit_s`"),
        ("/resume", {"x": 1}, 400, None, "the body: object contains unknown field `x`"),
    ],
)
def test_what_is_refused_says_why_and_begins_nothing(
    house: House, path: str, content: object, status: int, param: str | None, message: str
) -> None:
    before = house.get("/operations")
    response = house.post(path, content)
    error = error_of(response)
    assert error["message"].startswith(message)
    assert (response.status_code, error["param"]) == (status, param)
    assert house.get("/operations") == before
    assert house.served() == ["one", "two"]


@settings(max_examples=100)
@given(
    table=st.dictionaries(
        st.sampled_from([row.name for row in dataclasses.fields(ModelSettings)])
        | st.sampled_from(["activate", "model", "limit_s"]),
        st.none()
        | st.booleans()
        | st.integers(-1, 2**70)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=8)
        | st.sampled_from(["/", "..", "~", "~x/y", 300 * "x", "a/\x00", "f16"])
        | st.lists(st.integers(), max_size=2),
        max_size=3,
    ),
    path=st.sampled_from(["/models/load", "/models/unload", "/models/activate"]),
)
def test_no_table_is_ever_the_servers_fault(table: dict[str, Any], path: str, built: House) -> None:
    response = built.post(path, table)
    assert response.status_code in (202, 400, 404, 409)


@pytest.mark.parametrize("path", ["/models/load", "/models/unload", "/models/activate"])
def test_what_is_not_json_is_refused(house: House, path: str) -> None:
    for content in (b"", b"load!", b'{"model": "on'):
        response = house.server.unix.post(path, content=content)
        assert response.status_code == 400
        assert error_of(response)["message"].startswith("the body is not valid JSON: ")


def test_a_file_that_is_not_there_fails_and_says_so(house: House) -> None:
    view = house.follow(house.post("/models/load", {"path": "/nowhere/x.gguf"}))
    assert (view["state"], view["model"]) == ("failed", "x")
    assert view["error"].startswith("x: /nowhere/x.gguf cannot be opened: No such file or directory")
    response = house.post("/models/load?wait=true", {"path": "/nowhere/x.gguf"})
    assert (response.status_code, error_of(response)["code"]) == (422, "model_not_loadable")
    assert house.get(response.headers["location"])["error"] == error_of(response)["message"]
    status = house.get("/status")
    assert (status["loading"], "x" in status["unloaded"]) == ([], False)
    assert house.served() == ["one", "two"]


def test_a_file_that_is_damaged_names_what_is_wrong(house: House, tiny_model: ModelSettings) -> None:
    whole = tiny_model.path.read_bytes()
    (house.models / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    (house.models / "odd.gguf").write_bytes(whole.replace(b"llama", b"lllll"))
    response = house.post("/models/load?wait=true", {"path": "cut.gguf"})
    assert (response.status_code, error_of(response)["code"]) == (422, "model_file_damaged")
    assert "tensor" in error_of(response)["message"]
    response = house.post("/models/load?wait=true", {"path": "odd.gguf"})
    assert (response.status_code, error_of(response)["code"]) == (422, "model_not_supported")
    assert "general.architecture" in error_of(response)["message"]
    assert house.ask("one").status_code == 200


def test_a_template_that_is_not_there_is_a_wrong_setting(house: House, tiny_model: ModelSettings) -> None:
    table = {"path": str(tiny_model.path), "chat_template": "/nowhere.jinja"}
    response = house.post("/models/load?wait=true", table)
    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_setting")
    assert "/nowhere.jinja" in error_of(response)["message"]


def test_a_tier_that_is_not_reached_is_a_conflict(house: House, tiny_model: ModelSettings) -> None:
    with closing(Waiting(house, "/models/load?wait=true", slow(tiny_model))) as waiting:
        house.door.open(RequiredTierError("slow: it must be resident on the GPU, but there is no room"))
        response = waiting.answer()
    assert (response.status_code, error_of(response)["code"]) == (409, "tier_not_reached")


def test_a_fault_says_nothing_about_itself(
    house: House, tiny_model: ModelSettings, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, "tierd.engine.models"):
        view = house.post("/models/load", slow(tiny_model))
        house.door.open(ZeroDivisionError("of a test"))
        last = house.follow(view)
    assert (last["state"], last["error"]) == (
        "failed",
        "slow: ZeroDivisionError while it was loaded: of a test",
    )


def slow(model: ModelSettings) -> dict[str, Any]:
    return {"path": str(model.path), "id": "slow"}


class Waiting:
    """A request of its own connection whose answer takes its time."""

    def __init__(self, house: House, path: str, content: object) -> None:
        encoded = json.dumps(content).encode()
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(LONG_WAIT_S)
        self.connection.connect(str(house.folder / "admin.sock"))
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(encoded)}"
        self.connection.sendall(head.encode() + b"\r\n\r\n" + encoded)

    def answer(self) -> httpx.Response:
        data = b""
        while piece := self.connection.recv(65536):
            data += piece
        head, _, content = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        return httpx.Response(int(first.split()[1]), headers=headers, content=content)

    def close(self) -> None:
        self.connection.close()


def test_an_answer_comes_when_its_wait_is_over(house: House, tiny_model: ModelSettings) -> None:
    response = house.post("/models/load", slow(tiny_model), prefer="wait=1")
    assert body(response, 202)["state"] == "running"
    assert house.get("/status")["loading"] == ["slow"]
    refused = house.ask("slow")
    assert (refused.status_code, error_of(refused)["code"]) == (503, "unavailable")
    for table in ({"id": "slow", "path": "x"}, slow(tiny_model)):
        twice = house.post("/models/load", table)
        assert twice.status_code == 409
        assert error_of(twice)["message"] == "the model 'slow' is loading already"
    for path in ("/models/unload", "/models/activate"):
        early = house.post(path, {"model": "slow"})
        assert (early.status_code, error_of(early)["code"]) == (503, "unavailable")
    house.door.open()
    assert house.follow(response)["state"] == "done"
    assert house.ask("slow").status_code == 200


def test_who_hangs_up_while_it_waits_ends_nothing(house: House, tiny_model: ModelSettings) -> None:
    with closing(Waiting(house, "/models/load?wait=true", slow(tiny_model))):
        wait_until(lambda: house.get("/status")["loading"] == ["slow"])
        view = house.get("/operations")["operations"][-1]
        operation = house.server.live.operations.find(view["id"])
        wait_until(lambda: bool(operation._watchers))
    wait_until(lambda: not operation._watchers)
    assert house.get(f"/operations/{view['id']}")["state"] == "running"
    house.door.open()
    wait_until(lambda: house.served() == ["one", "slow", "two"])


def test_five_hundred_calls_are_answered_while_a_model_loads(house: House, tiny_model: ModelSettings) -> None:
    loading = house.post("/models/load", slow(tiny_model))
    paths = ["/status", "/tier", "/slots", "/sessions", "/regions", "/passes", "/operations"]
    paths.append(loading.headers["location"])
    for path in 56 * paths:
        assert house.server.unix.get(path).status_code == 200
    for _ in range(52):
        assert house.server.live.get("/metrics").status_code == 200
    assert house.get(loading.headers["location"])["state"] == "running"
    house.door.open()
    assert house.follow(loading)["state"] == "done"


def test_an_unload_waits_for_streams_or_takes_a_limit(tiny_model: ModelSettings, tmp_path: Path) -> None:
    with administered(tiny_model, tmp_path / "admin.sock") as server:
        house = House(server, Door(), tmp_path, tmp_path)
        request = {"model": "two", "prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": True}
        with closing(server.live.send("/v1/completions", request)) as runs:
            wait_until(lambda: status_of(server, "two")["running"] == 1)
            waits = house.post("/models/unload", {"model": "two"})
            assert house.ask("two").status_code == 404
            assert house.get(waits.headers["location"])["state"] == "running"
            server.gate.step(5)
            assert runs.recv(65536).startswith(b"HTTP/1.1 200 ")
            assert house.follow(waits)["state"] == "done"
        with closing(server.live.send("/v1/completions", request | {"model": "one"})) as cut:
            wait_until(lambda: status_of(server, "one")["running"] == 1)
            limited = house.post("/models/unload", {"model": "one", "limit_s": 0})
            server.gate.open()
            assert cut.recv(65536).startswith(b"HTTP/1.1 503 ")
            assert house.follow(limited)["state"] == "done"
        status = house.get("/status")
        assert (status["models"], status["unloaded"]) == ([], ["one", "two"])
        assert server.live.get("/health").status_code == 503
        assert house.get("/slots") == {"slots": []}


def test_a_model_that_is_not_for_the_device_cannot_come_there(house: House) -> None:
    response = house.post("/models/activate?wait=true", {"model": "two"})
    assert (response.status_code, error_of(response)["code"]) == (409, "no_device")
    assert house.get(response.headers["location"])["state"] == "failed"


def test_a_server_that_drains_admits_nobody_until_it_resumes(
    tiny_model: ModelSettings, tmp_path: Path
) -> None:
    with administered(tiny_model, tmp_path / "admin.sock") as server:
        house = House(server, Door(), tmp_path, tmp_path)
        request = {"model": "two", "prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": True}
        with closing(server.live.send("/v1/completions", request)) as runs:
            wait_until(lambda: status_of(server, "two")["running"] == 1)
            drain = house.post("/drain")
            view = body(drain, 202)
            assert (view["kind"], view["model"], view["state"]) == ("drain", "", "running")
            wait_until(lambda: server.live.get("/health").status_code == 503)
            for response in (server.live.get("/health"), house.ask("one"), house.ask(None), house.ask("no")):
                assert (response.status_code, error_of(response)["code"]) == (503, "unavailable")
                assert int(response.headers["retry-after"]) >= 1
            assert house.served() == ["one", "two"]
            assert house.get("/status")["unloaded"] == []
            server.gate.step(5)
            assert runs.recv(65536).startswith(b"HTTP/1.1 200 ")
            assert house.follow(drain)["state"] == "done"
            assert house.get("/status")["draining"] is True
            assert house.get("/slots")["slots"]
        assert body(house.post("/drain?wait=true", {}))["state"] == "done"
        assert body(house.post("/resume?wait=true", {}))["state"] == "done"
        server.gate.open()
        assert server.live.get("/health").status_code == 200
        assert house.ask("two").status_code == 200


def test_a_drain_that_is_called_off_has_failed(tiny_model: ModelSettings, tmp_path: Path) -> None:
    with administered(tiny_model, tmp_path / "admin.sock") as server:
        house = House(server, Door(), tmp_path, tmp_path)
        with closing(server.live.send("/v1/completions", HI)) as runs:
            wait_until(lambda: status_of(server, "one")["running"] == 1)
            drain = house.post("/drain")
            assert body(house.post("/resume?wait=true"))["state"] == "done"
            last = house.follow(drain)
            assert (last["state"], "called off" in last["error"]) == ("failed", True)
            server.gate.open()
            assert runs.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert house.ask("one").status_code == 200


def test_how_operations_end_is_logged(house: House, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tierd.http.admin.commands"):
        body(house.post("/resume?wait=true"))
        house.follow(house.post("/models/load", {"path": "/nowhere/x.gguf"}))
    done, failed = caplog.records
    assert (done.levelname, failed.levelname) == ("INFO", "WARNING")
    assert done.getMessage().startswith("operation=resume-")
    assert " model=- done in " in done.getMessage()
    assert " model=x failed after " in failed.getMessage()
    assert "/nowhere/x.gguf cannot be opened" in failed.getMessage()


def test_a_name_with_a_new_line_stays_on_one(house: House, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tierd.http.admin.commands"):
        view = house.follow(house.post("/models/load", {"path": "/nowhere/x\ny.gguf", "id": "x"}))
    assert view["error"].startswith("x: /nowhere/x y.gguf cannot be opened")
    (failed,) = caplog.records
    assert view["error"] in failed.getMessage()
