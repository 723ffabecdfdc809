"""Those who ask, hang up, give orders and break things, all at random and all at once."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from chaos.house import House
from faulty import SUBMIT_FAULTS, WAIT_FAULTS
from kompute import Faults

CLIENTS = 6
MOST = 40
NOT_FOUND, UNAVAILABLE = 404, 503


@dataclass(frozen=True)
class Ask:
    """A request's path and body, but for how tokens are sent, and how many: at most `most`."""

    path: str
    body: tuple[tuple[str, Any], ...]
    most: int = MOST

    @property
    def model(self) -> str:
        return str(dict(self.body)["model"])

    def asked(self, tokens: int, *, stream: bool) -> dict[str, object]:
        return {**dict(self.body), "max_tokens": tokens, "ignore_eos": True, "stream": stream}


@dataclass(frozen=True)
class Heard:
    """What a client got of a request that it waited for: name, text, and a status of error, if any."""

    ask: Ask
    began: float
    ended: float
    name: str = ""
    text: str = ""
    status: int = 200
    message: str = ""


@dataclass
class Window:
    """A time in which requests may be refused. model: whose; None: of all. statuses: how.

    cuts: whether those may be ended, too, that have been answered in part.
    """

    model: str | None
    statuses: tuple[int, ...]
    cuts: bool
    began: float = field(default_factory=time.monotonic)
    ended: float = float("inf")

    def excuses(self, heard: Heard) -> bool:
        mine = self.model in (None, heard.ask.model) and (self.cuts or not heard.text)
        return (
            mine and heard.status in self.statuses and self.began <= heard.ended and heard.began <= self.ended
        )


def hear(
    client: httpx.Client, ask: Ask, tokens: int, *, stream: bool, give_up: int | None = None
) -> Heard | None:
    """Ask, and return the answer; None where the client hangs up. give_up: after so many pieces."""
    began = time.monotonic()
    name, pieces, status, message = "", [], 200, ""
    with client.stream("POST", ask.path, json=ask.asked(tokens, stream=stream)) as response:
        status = response.status_code
        if status != 200 or not stream:
            answer = json.loads(response.read())
            if status == 200:
                name, pieces = answer["id"], [_text(answer["choices"][0])]
            else:
                message = answer["error"]["message"]
        else:
            for count, line in enumerate(line for line in response.iter_lines() if line.startswith("data: ")):
                if give_up is not None and count >= give_up:
                    return None
                if line == "data: [DONE]":
                    break
                frame = json.loads(line.removeprefix("data: "))
                if "error" in frame:
                    status, message = UNAVAILABLE, frame["error"]["message"]
                else:
                    name = frame["id"]
                    pieces += [_text(choice) for choice in frame["choices"]]
    return Heard(ask, began, time.monotonic(), name, "".join(pieces), status, message)


def _text(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("message") or choice["delta"]).get("content") or "")


@dataclass
class Storm:
    """A crowd around a server for some seconds. did: how often each thing was done. kompute: its faults."""

    house: House
    asks: tuple[Ask, ...]
    seed: int
    kompute: Faults | None = None
    heard: list[Heard] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    did: Counter[str] = field(default_factory=Counter)
    _over: threading.Event = field(default_factory=threading.Event)

    def rage(self, seconds: float) -> None:
        """Let it rage; what a thread meets that it does not expect is raised."""
        roles: list[Callable[[Random], None]] = [self._client] * CLIENTS
        roles += [self._owner, self._mover, self._saboteur]
        with ThreadPoolExecutor(len(roles)) as threads:
            running = [threads.submit(role, Random(f"{self.seed} {n}")) for n, role in enumerate(roles)]
            try:
                self._over.wait(seconds)
            finally:
                self._over.set()
            for each in running:
                each.result()

    def unexcused(self) -> Iterable[Heard]:
        """Those that failed for no reason that the crowd has given."""
        return [
            heard
            for heard in self.heard
            if heard.status != 200 and not any(window.excuses(heard) for window in self.windows)
        ]

    def _pause(self, random: Random, most: float) -> bool:
        """Wait for a while; return whether the storm goes on."""
        return not self._over.wait(random.uniform(0, most))

    def _client(self, random: Random) -> None:
        with httpx.Client(base_url=self.house.live.url, timeout=60, trust_env=False) as client:
            while self._pause(random, 0.05):
                ask, tokens = random.choice(self.asks), random.randint(1, MOST)
                way = random.choice(("stream", "stream", "whole", "cancel", "abandon"))
                self.did[way] += 1
                if way == "abandon":
                    connection = self.house.live.send(
                        ask.path, ask.asked(tokens, stream=random.random() < 0.5)
                    )
                    with closing(connection):
                        self._pause(random, 0.2)
                    continue
                give_up = random.randint(1, tokens) if way == "cancel" else None
                heard = hear(client, ask, tokens, stream=way != "whole", give_up=give_up)
                if heard is not None:
                    self.heard.append(heard)

    def _owner(self, random: Random) -> None:
        """Unloads models and loads them again, and has the server drained."""
        while self._pause(random, 1.0):
            if random.random() < 0.3:
                self.did["drain"] += 1
                window = self._open(Window(None, (UNAVAILABLE,), cuts=False))
                answer = self.house.post("/drain")
                assert answer.status_code == 202, answer.text
                self._pause(random, 0.3)
                self.house.do("/resume?wait=true")
                window.ended = time.monotonic()
            else:
                self.did["unload"] += 1
                model = random.choice(self.house.models).id
                limit = {"limit_s": random.choice((0, 0.2))} if random.random() < 0.7 else {}
                window = self._open(Window(model, (NOT_FOUND, UNAVAILABLE), cuts=bool(limit)))
                self.house.do("/models/unload?wait=true", model=model, **limit)
                self._pause(random, 0.2)
                self._load(model, random.random() < 0.5)
                window.ended = time.monotonic()

    def _load(self, model: str, activate: bool) -> None:
        """Load a model, again where the device fails meanwhile."""
        while True:
            self.did["load"] += 1
            answer = self.house.post("/models/load?wait=true", id=model, activate=activate)
            if answer.status_code == 200 and answer.json()["state"] == "done":
                return
            assert answer.status_code in (409, 503), answer.text
            assert answer.json()["error"]["code"] in ("device_unavailable", "no_room", "no_device"), (
                answer.text
            )
            activate = False

    def _open(self, window: Window) -> Window:
        self.windows.append(window)
        return window

    def _mover(self, random: Random) -> None:
        """Has models brought to the device, and caches flushed."""
        while self._pause(random, 0.8):
            if random.random() < 0.3:
                self.did["flush"] += 1
                assert self.house.post("/flush").status_code == 200
            else:
                self.did["activate"] += 1
                answer = self.house.post(
                    "/models/activate?wait=true", model=random.choice(self.house.models).id
                )
                assert answer.status_code in (200, 404, 409, 503), answer.text

    def _saboteur(self, random: Random) -> None:
        """Lets Vulkan functions fail, and Kompute."""
        while self._pause(random, 2.0):
            if self.kompute is not None and random.random() < 0.5:
                self.did["fault of kompute"] += 1
                self.kompute.set(random.choice(("raise", "nothing", "die", "closed")))
                self._pause(random, 1.0)
                self.kompute.end()
                continue
            function, results = random.choice(
                (("vkQueueSubmit", SUBMIT_FAULTS), ("vkWaitSemaphores", WAIT_FAULTS))
            )
            self.did["fault"] += 1
            vk = self.house.stage.devices[-1].vk
            vk.inject(function, random.choice(sorted(results)), after=random.randrange(20), times=1)
