from __future__ import annotations

import asyncio
import threading

import pytest

from tierd.http.encoder import SHORT_CHARACTERS, Encoder


def test_long_work_does_not_hold_the_loop_up() -> None:
    async def run() -> str:
        encoder = Encoder()
        released = threading.Event()
        work = asyncio.create_task(encoder.run(SHORT_CHARACTERS + 1, lambda: str(released.wait(20))))
        await asyncio.sleep(0)
        released.set()
        try:
            return await work
        finally:
            encoder.close()

    assert asyncio.run(run()) == "True"


@pytest.mark.parametrize("characters", [1, SHORT_CHARACTERS + 1])
def test_short_work_stays_on_the_loops_thread_and_errors_come_through(characters: int) -> None:
    threads: list[str] = []

    def work() -> None:
        threads.append(threading.current_thread().name)
        raise KeyError("fault")

    async def run() -> None:
        encoder = Encoder()
        try:
            await encoder.run(characters, work)
        finally:
            encoder.close()

    with pytest.raises(KeyError, match="fault"):
        asyncio.run(run())
    assert threads[0].startswith("tierd-encode") == (characters > SHORT_CHARACTERS)
