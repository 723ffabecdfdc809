from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from tierd.http.responses.log import EventLog, LogReader

FRAMES = [b"0", b"1", b"2"]


async def nobody() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


def run(log: EventLog, test: Callable[[LogReader], Awaitable[None]], start: int = 0) -> None:
    async def open_and_test() -> None:
        async with LogReader(log, start, nobody, 0.01) as reader:
            await test(reader)

    asyncio.run(asyncio.wait_for(open_and_test(), 20))


def test_a_reader_gets_all_from_its_place_on_until_the_end() -> None:
    log = EventLog(FRAMES)

    async def read(reader: LogReader) -> None:
        assert await reader.take() == [b"1", b"2"]
        asyncio.get_running_loop().call_later(0.005, log.write, [b"3"])
        assert await reader.take() == [b"3"]
        assert not reader.ended
        asyncio.get_running_loop().call_later(0.005, log.end)
        assert await reader.take() == []
        assert reader.ended

    run(log, read, start=1)
    log.write([b"4"])  # nobody listens any more


def test_what_has_ended_is_read_at_once() -> None:
    async def read(reader: LogReader) -> None:
        assert await reader.take() == FRAMES
        assert reader.ended
        assert reader.under_way

    run(EventLog(FRAMES, ended=True), read)


def test_a_place_behind_the_end_has_nothing() -> None:
    async def read(reader: LogReader) -> None:
        assert reader.ended
        assert await reader.take() == []

    run(EventLog(FRAMES, ended=True), read, start=7)


def test_a_place_that_is_still_to_come_is_waited_for() -> None:
    log = EventLog(FRAMES)

    async def read(reader: LogReader) -> None:
        asyncio.get_running_loop().call_later(0.005, log.write, [b"3", b"4", b"5"])
        assert await reader.take() == [b"5"]

    run(log, read, start=5)


def test_a_quiet_reader_is_reminded() -> None:
    async def read(reader: LogReader) -> None:
        reader.remind(0.005)
        assert await reader.take() == []
        assert not reader.ended

    run(EventLog(), read)


def test_a_client_that_does_not_take_what_it_is_sent_is_cut_off() -> None:
    log = EventLog(FRAMES)

    async def read(reader: LogReader) -> None:
        cut = asyncio.Event()
        reader.cut_slow(cut.set)
        await reader.take()
        log.write([b"3"])
        await reader.take()  # in time
        assert not cut.is_set()
        await cut.wait()

    run(log, read)


def test_a_client_that_hangs_up_is_told_of() -> None:
    async def leave() -> Message:
        return {"type": "http.disconnect"}

    async def read() -> None:
        async with LogReader(EventLog(), 0, leave, 1) as reader:
            with pytest.raises(ClientDisconnect):
                await reader.take()

    asyncio.run(asyncio.wait_for(read(), 20))
