from __future__ import annotations

import asyncio
import threading

import pytest
from starlette.requests import ClientDisconnect

from tierd.core import TextEvent
from tierd.http.mailboxes import Mailboxes


def test_events_of_a_step_reach_their_mailboxes_in_order() -> None:
    async def run() -> None:
        mailboxes = Mailboxes()
        mailboxes.bind(asyncio.get_running_loop())
        a, b = mailboxes.open("a"), mailboxes.open("b")
        pairs = [
            ("a", TextEvent("1")),
            ("gone", TextEvent("?")),
            ("b", TextEvent("2")),
            ("a", TextEvent("3")),
        ]
        threading.Thread(target=mailboxes.deliver, args=(pairs,)).start()
        assert await a.take() == [TextEvent("1"), TextEvent("3")]
        assert await b.take() == [TextEvent("2")]
        mailboxes.close("a")
        mailboxes.deliver([("a", TextEvent("late")), ("b", TextEvent("4"))])
        assert await b.take() == [TextEvent("4")]

    asyncio.run(run())


def test_nothing_is_delivered_without_a_loop() -> None:
    Mailboxes().deliver([("a", TextEvent("1"))])


def test_a_reader_is_reminded_only_when_nothing_comes() -> None:
    async def run() -> None:
        mailboxes = Mailboxes()
        mailbox = mailboxes.open("a")
        mailbox.remind(0.01)
        assert await mailbox.take() == []
        assert await mailbox.take() == []
        mailbox.put(TextEvent("1"))
        assert await mailbox.take() == [TextEvent("1")]
        mailboxes.close("a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mailbox.take(), 0.05)

    asyncio.run(run())


def test_a_reader_learns_that_its_client_has_gone() -> None:
    async def run() -> None:
        mailbox = Mailboxes().open("a")
        mailbox.put(TextEvent("1"))
        mailbox.hang_up()
        with pytest.raises(ClientDisconnect):
            await mailbox.take()

    asyncio.run(run())
