"""However a response ends, it leaves the row of those that run, and is kept if anybody knows of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from http_responses import HEAD, TOKENIZER, USAGE
from tierd.chat.reply import Said
from tierd.errors import ExecutorError, QueueFullError, UnavailableError
from tierd.http.generation.logprobs import ChatScribe
from tierd.http.quotas import Allowance, Lease
from tierd.http.responses.draft import Draft, names
from tierd.http.responses.run import Line, Run, RunFrames
from tierd.http.responses.shelf import ResponsesShelf
from tierd.http.responses.store import Kept, ResponsesStore
from tierd.http.turns.conversation import Ended
from tierd.settings import KeySettings

ALL = [[(0, Said("a"))], [(0, Said("b")), (0, Ended("stop", USAGE))]]


@dataclass
class Told:
    """A conversation of which all is known: `take` returns or raises the next of `news`, then listens.

    refusal: raised when it is entered.
    """

    line: Line
    news: list[Any] = field(default_factory=list)
    refusal: Exception | None = None
    under_way: bool = True
    left: bool = False

    async def __aenter__(self) -> Told:
        if self.refusal is not None:
            raise self.refusal
        return self

    async def __aexit__(self, *error: object) -> None:
        self.left = True

    async def take(self) -> Any:
        if self.news:
            news = self.news.pop(0)
            if isinstance(news, Exception):
                raise news
            return news
        await self.line.receive()
        raise ClientDisconnect


class House:
    """A shelf, and runs that are put on it."""

    def __init__(self) -> None:
        self.shelf = ResponsesShelf(ResponsesStore(10, 1 << 20))
        self.client_gone = asyncio.Event()

    async def receive(self) -> Message:
        await self.client_gone.wait()
        return {"type": "http.disconnect"}

    def run(self, *news: Any, background: bool = False, refusal: Exception | None = None) -> Run:
        line = Line(None if background else self.receive)
        self._told = Told(line, list(news), refusal)
        told: Any = self._told
        head = msgspec.structs.replace(HEAD, background=background)
        run = Run(told, Draft(head, ChatScribe(TOKENIZER), names("a")), line, "me", [])
        self.shelf.add(run)
        assert self.shelf.find("me", HEAD.id) is run
        return run

    async def left(self) -> None:
        """Wait until the last run has ended."""
        while not self._told.left:
            await asyncio.sleep(0)

    def kept(self) -> dict[str, Any] | None:
        """Return the response that is kept; it runs no more."""
        found = self.shelf.find("me", HEAD.id)
        assert not isinstance(found, Run)
        assert self.shelf.find("", HEAD.id) is None
        return json.loads(found.response) if isinstance(found, Kept) else None


def play(test: Callable[[House], Awaitable[None]]) -> None:
    async def open_and_test() -> None:
        await test(House())

    asyncio.run(asyncio.wait_for(open_and_test(), 20))


async def stream(run: Run) -> None:
    """Send all of a run to a client."""
    async with run:
        await run.take()
        assert RunFrames(run).first.startswith(b"event: response.created\n")
        while not run.ended:
            await run.take()


def test_one_that_the_model_ends_is_kept() -> None:
    async def test(house: House) -> None:
        run = house.run(*ALL)
        await run.finish()
        kept = house.kept()
        assert kept == msgspec.to_builtins(run.response())
        assert kept["output"][0]["content"][0]["text"] == "ab"

    play(test)


@pytest.mark.parametrize("news", [ExecutorError("it burns"), QueueFullError("full", retry_after=1)])
def test_one_that_fails_is_kept_if_anybody_knows_of_it(news: Exception) -> None:
    async def test(house: House) -> None:
        run = house.run(news)
        with pytest.raises(type(news)):
            await run.finish()
        assert house.kept() is None

        run = house.run(ALL[0], news)
        with pytest.raises(type(news)):
            await stream(run)
        kept = house.kept()
        assert kept is not None
        assert kept["status"] == "failed"

        house.shelf.begin(house.run(news, background=True), Lease())
        await house.left()
        assert house.kept() == kept | {"background": True, "output": []}

    play(test)


def test_one_that_cannot_begin_leaves_too() -> None:
    async def test(house: House) -> None:
        run = house.run(refusal=UnavailableError("ending"))
        with pytest.raises(UnavailableError):
            await run.finish()
        assert house.kept() is None

    play(test)


def test_one_whose_client_goes_is_cancelled() -> None:
    async def test(house: House) -> None:
        run = house.run(ALL[0])
        house.client_gone.set()
        with pytest.raises(ClientDisconnect):
            await run.finish()
        assert run.response().status == "cancelled"
        assert house.kept() is None

    play(test)


@pytest.mark.parametrize("background", [True, False])
def test_one_that_is_cancelled_ends_at_once(background: bool) -> None:
    async def test(house: House) -> None:
        run = house.run(ALL[0], background=background)
        finished = asyncio.create_task(run.finish())
        while not run.response().output:
            await asyncio.sleep(0)
        run.cancel()
        assert run.response().status == "cancelled"
        await finished
        kept = house.kept()
        assert kept == msgspec.to_builtins(run.response())
        run.cancel()
        assert run.ended

    play(test)


def test_one_that_is_cancelled_gives_no_more_of_what_came() -> None:
    async def test(house: House) -> None:
        run = house.run(*ALL)
        async with run:
            await run.take()
            run.cancel()
            assert not run.ended
            assert await run.take() == run.parting
            assert run.ended

    play(test)


def test_one_that_is_forgotten_ends_and_is_not_kept() -> None:
    async def test(house: House) -> None:
        house.shelf.begin(house.run(ALL[0], background=True), Lease())
        await asyncio.sleep(0)
        assert house.shelf.remove("me", HEAD.id)
        await house.left()
        assert house.kept() is None
        assert not house.shelf.remove("me", HEAD.id)

    play(test)


@pytest.mark.parametrize("turns", [0, 3])
def test_what_runs_in_the_background_is_a_request_of_its_key_from_the_first_moment(turns: int) -> None:
    async def test(house: House) -> None:
        allowance = Allowance("alice", KeySettings(requests=1), time.monotonic)
        asked = Lease(allowance)
        asked.hold()
        house.shelf.begin(house.run(ALL[0], background=True), asked)
        asked.release()
        for _ in range(turns):
            assert allowance.running == 1
            await asyncio.sleep(0)
        assert allowance.running == 1
        await house.shelf.close()
        assert allowance.running == 0

    play(test)


def test_a_house_that_closes_ends_what_runs_in_the_background() -> None:
    async def test(house: House) -> None:
        house.shelf.begin(house.run(ALL[0], background=True), Lease())
        await asyncio.sleep(0)
        await house.shelf.close()
        kept = house.kept()
        assert kept is not None
        assert kept["status"] == "cancelled"

    play(test)
