"""A server that has served many requests holds no more memory than one that has served some."""

from __future__ import annotations

import json
import random
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from http_daemon import Daemon, daemon

WARM_UP, FURTHER = 500, 1000
CLIENTS = 12


def ask(server: Daemon, client: httpx.Client, seed: int) -> str:
    """Send one request of many kinds; return what became of it."""
    dice = random.Random(seed)
    prompt = [dice.randrange(3, 300) for _ in range(dice.randint(1, 60))]
    body = {"prompt": prompt, "max_tokens": dice.randint(1, 24), "ignore_eos": True, "seed": seed}
    match dice.randrange(8):
        case 0:
            hang_up(server, body | {"stream": True})
            return "dropped"
        case 1:
            return str(client.post("/v1/completions", json=body | {"max_tokens": 9999}).status_code)
        case 2:
            words = " ".join(dice.choices(["the", "of", "and"], k=20))
            chat = {"messages": [{"role": "user", "content": words}], "max_tokens": 8}
            return str(client.post("/v1/chat/completions", json=chat).status_code)
        case 3 | 4:
            with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
                response.read()
            return str(response.status_code)
    return str(client.post("/v1/completions", json=body).status_code)


def hang_up(server: Daemon, body: object) -> None:
    content = json.dumps(body).encode()
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(content) + content
        )


def ask_until_served(server: Daemon, client: httpx.Client, seed: int) -> Counter[str]:
    """Come back for as long as there is no place; return how it went, each try."""
    outcomes = Counter([ask(server, client, seed)])
    while outcomes.total() == outcomes["429"]:
        time.sleep(0.05)
        outcomes[ask(server, client, seed)] += 1
    return outcomes


def serve_many(server: Daemon, seeds: range) -> Counter[str]:
    limits = httpx.Limits(max_connections=CLIENTS)
    with (
        httpx.Client(base_url=server.url, timeout=30, limits=limits, trust_env=False) as client,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        return sum(pool.map(lambda seed: ask_until_served(server, client, seed), seeds), Counter())


def test_memory_stays_flat(tmp_path: Path) -> None:
    settings = "kv.memory_mb = 2\nqueue.capacity = 4\nlog.level = 'warning'\n[[models]]\nstreams = 4"
    with daemon(tmp_path, context=256, settings=settings) as server:
        serve_many(server, range(WARM_UP))
        before = server.resident()
        outcomes = serve_many(server, range(WARM_UP, WARM_UP + FURTHER))
        after = server.resident()
        assert outcomes.total() - outcomes["429"] == FURTHER
        assert outcomes["200"] > FURTHER / 2
        assert set(outcomes) == {"200", "400", "429", "dropped"}
        assert abs(after - before) <= 0.02 * before, (before, after)
        assert httpx.get(server.url + "/health", trust_env=False).status_code == 200
