from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from tierd.http.waiting import WaitingRoom


def test_requests_wait_until_it_is_opened_but_for_those_of_who_watches() -> None:
    served: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        served.append(scope.get("path", scope["type"]))

    async def receive() -> dict[str, object]:
        raise AssertionError

    async def send(message: object) -> None:
        raise AssertionError

    async def scenario() -> None:
        room = WaitingRoom(app)

        def call(type: str, **more: str) -> asyncio.Task[None]:
            return asyncio.ensure_future(room({"type": type, **more}, receive, send))

        await call("lifespan")
        await call("http", path="/health")
        first, second = (call("http", path=path) for path in ("/v1/models", "/v1/completions"))
        given_up = call("http", path="/never")
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        assert served == ["lifespan", "/health"]
        await asyncio.to_thread(room.open)
        room.open()
        await asyncio.gather(first, second)
        await call("http", path="/v1/models")

    asyncio.run(scenario())
    assert served == ["lifespan", "/health", "/v1/models", "/v1/completions", "/v1/models"]
