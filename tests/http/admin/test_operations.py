"""Operations as HTTP shows them: listed, looked at, followed, waited for; the tests tell what they do."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from live import error_of, wait_until
from live_admin import Administered, administered, body
from tierd.engine.operation import Operation
from tierd.errors import InvalidRequestError, ModelFileError, OperationNotFoundError
from tierd.http import Operations
from tierd.http.admin import operations
from tierd.settings import ModelSettings


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operations") / "admin.sock"


@pytest.fixture(scope="module")
def server(tiny_model: ModelSettings, socket_path: Path) -> Iterator[Administered]:
    with administered(tiny_model, socket_path) as server:
        yield server


class Work:
    """An operation that runs on a server until a test ends it."""

    def __init__(self, server: Administered, kind: str = "load") -> None:
        self.operation = Operation(kind, "x")
        self.future: Future[None] = Future()
        server.live.operations.add(self.operation, self.future)
        self.path = f"/operations/{self.operation.id}"

    @property
    def watched(self) -> bool:
        return bool(self.operation._watchers)


@contextmanager
def followed(server: Administered, work: Work) -> Iterator[Iterator[Any]]:
    """Yield the events of an operation's stream."""
    headers = {"accept": "text/event-stream"}
    with server.unix.stream("GET", work.path, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))


def test_an_operation_is_looked_at_and_listed(server: Administered) -> None:
    work = Work(server)
    work.operation.enter("open")
    work.operation.progress(1, 4)
    view = body(server.unix.get(work.path))
    assert view.pop("seconds") >= 0
    assert view.pop("created") > 1.7e9
    assert view == {
        "id": work.operation.id,
        "kind": "load",
        "model": "x",
        "state": "running",
        "code": "",
        "phase": "open",
        "phases": [],
        "done": 1,
        "total": 4,
        "error": "",
    }
    work.future.set_exception(ModelFileError("x: it is cut short"))
    view = body(server.unix.get(work.path))
    assert (view["state"], view["error"], view["phase"]) == ("failed", "x: it is cut short", "")
    assert [phase["name"] for phase in view["phases"]] == ["open"]
    later = Work(server)
    listed = [view["id"] for view in body(server.unix.get("/operations"))["operations"]]
    assert listed[-2:] == [work.operation.id, later.operation.id]
    later.future.set_result(None)


def test_one_that_nobody_knows_is_not_found(server: Administered) -> None:
    for headers in ({}, {"accept": "text/event-stream"}):
        response = server.unix.get("/operations/load-0", headers=headers)
        error = error_of(response)
        assert (response.status_code, error["code"]) == (404, "operation_not_found")
        assert "'load-0'" in error["message"]


def test_all_listeners_know_the_same(server: Administered) -> None:
    work = Work(server)
    headers = {"authorization": "Bearer correct-horse-battery"}
    assert body(server.tcp.get(work.path, headers=headers))["state"] == "running"
    work.future.set_result(None)


def test_a_follower_sees_each_change_and_the_end(server: Administered) -> None:
    work = Work(server)
    with followed(server, work) as events:
        assert next(events)["state"] == "running"
        work.operation.enter("open")
        assert next(events)["phase"] == "open"
        work.operation.progress(1, 2)
        assert next(events)["done"] == 1
        work.future.set_result(None)
        last = next(events)
        assert (last["state"], [phase["name"] for phase in last["phases"]]) == ("done", ["open"])
        assert list(events) == []
    wait_until(lambda: not work.watched)


def test_what_has_ended_is_told_at_once(server: Administered) -> None:
    work = Work(server)
    work.future.set_exception(ModelFileError("x: no"))
    with followed(server, work) as events:
        assert [event["error"] for event in events] == ["x: no"]


def test_changes_that_come_fast_are_told_together(server: Administered) -> None:
    work = Work(server)
    with followed(server, work) as events:
        next(events)
        began = time.monotonic()
        for i in range(300):
            work.operation.progress(i + 1, 300)
            time.sleep(0.001)
        took = time.monotonic() - began
        work.future.set_result(None)
        told = list(events)
        assert len(told) <= took / operations.EVENT_S + 2
        assert (told[-1]["state"], told[-1]["done"]) == ("done", 300)


def test_a_quiet_stream_is_kept_alive(server: Administered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "KEEP_ALIVE_S", 0.01)
    work = Work(server)
    with server.unix.stream("GET", work.path, headers={"accept": "text/event-stream"}) as response:
        lines = response.iter_lines()
        assert next(line for line in lines if line).startswith("data: ")
        assert [next(line for line in lines if line) for _ in range(2)] == [": keep-alive"] * 2
        work.future.set_result(None)
        assert [line[:6] for line in lines if line and line != ": keep-alive"] == ["data: "]


def test_a_follower_that_hangs_up_leaves_nothing_behind(server: Administered, socket_path: Path) -> None:
    work = Work(server)
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(socket_path))
        caller.sendall(f"GET {work.path} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".encode())
        assert caller.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert work.watched
    wait_until(lambda: not work.watched)
    assert body(server.unix.get(work.path))["state"] == "running"
    work.future.set_result(None)


def test_the_oldest_of_those_that_have_ended_are_forgotten() -> None:
    known = Operations(kept=3)
    works = [(Operation("load", f"m{i}"), Future[None]()) for i in range(10)]
    for operation, future in works:
        known.add(operation, future)
    assert len(known.all()) == 10
    for _, future in works[2:]:
        future.set_result(None)
    assert [view.model for view in known.all()] == ["m0", "m1", "m7", "m8", "m9"]
    with pytest.raises(OperationNotFoundError):
        known.find(works[6][0].id)
    assert known.find(works[0][0].id) is works[0][0]
    works[0][1].set_result(None)  # it began before all that have ended
    assert [view.model for view in known.all()] == ["m1", "m7", "m8", "m9"]


def asking(query: str = "", **headers: str) -> Request:
    named = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "query_string": query.encode(), "headers": named})


@pytest.mark.parametrize(
    ("request_", "seconds"),
    [
        (asking(), 0),
        (asking("wait=true"), None),
        (asking("wait=false", prefer="wait=9"), 0),
        (asking("wait=true", prefer="wait=9"), None),
        (asking(prefer="wait=9"), 9),
        (asking(prefer="respond-async, wait = 20; x"), 20),
        (asking(prefer="wait=999999999"), 86400),
        (asking(prefer="await=9"), 0),
        (asking(prefer="wait=soon"), 0),
        (asking(prefer="wait=-1"), 0),
        (asking(prefer=f"wait={5000 * '9'}"), 0),
    ],
)
def test_how_long_a_request_waits(request_: Request, seconds: float | None) -> None:
    assert operations.patience(request_) == seconds


@pytest.mark.parametrize("query", ["wait=", "wait=1", "wait=True"])
def test_what_is_no_wish_to_wait_is_refused(query: str) -> None:
    with pytest.raises(InvalidRequestError, match="wait must be true or false"):
        operations.patience(asking(query))


def test_a_wish_to_wait_that_is_refused_begins_nothing(server: Administered) -> None:
    def known() -> list[str]:
        return [view["id"] for view in body(server.unix.get("/operations"))["operations"]]

    before = known()
    response: httpx.Response = server.unix.post("/drain?wait=long")
    assert (response.status_code, error_of(response)["param"]) == (400, "wait")
    assert known() == before
