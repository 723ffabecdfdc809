"""Hostile HTTP against a live daemon: it goes on serving, and every answer is one that clients understand."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from hostile.attempts import Attempt, attempts, get, post
from hostile.daemon import Daemon, daemon
from hostile.wire import Wire, check
from live import wait_until
from tierd.http.protocol import LINGER_S
from tiny import write_llama

REQUESTS = 10_000
SEED = 19_690_407
CLIENTS = 8
CONNECTIONS = 40
TIMEOUT_S = 1.0
MIB = 1 << 20


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("http")
    write_llama(folder / "tiny.gguf", context=256)
    settings = f"""
        connections = {CONNECTIONS}
        request_timeout_s = {TIMEOUT_S}
        [limits]
        max_output_tokens = 40
        [[models]]
        id = "tiny"
        path = "tiny.gguf"
    """
    with daemon(folder, settings) as running:
        yield running


def answer_of(served: Daemon) -> str:
    """The same question every time."""
    with served.client() as client:
        response = client.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "the"}], "max_tokens": 20, "temperature": 0},
        )
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def serves(served: Daemon) -> bool:
    with served.client() as client:
        return client.get("/health").status_code == 200


def at_rest(served: Daemon) -> bool:
    """Whether no request is being served or waits, and no page is in use."""
    with served.client() as client:
        metrics = client.get("/metrics").text
    return all(
        f'tierd_{name}{{model="tiny"}} 0.0\n' in metrics
        for name in ("requests_running", "requests_waiting", "kv_pages_used")
    )


def carry_out(served: Daemon, attempt: Attempt) -> list[int]:
    """Do what an attempt asks for; return the answers' statuses. Every one has been checked."""
    statuses: list[int] = []
    with Wire(served.address) as wire:
        wire.send(attempt.data)
        if attempt.drops:
            wire.drop()
            return statuses
        if attempt.answers is None:
            wire.finish_sending()
        while attempt.answers is None or len(statuses) < attempt.answers:
            answer = wire.answer(attempt.head)
            if answer is None:
                break
            check(answer)
            statuses.append(answer.status)
            if attempt.head:
                break
    if attempt.answers is not None:
        assert len(statuses) == attempt.answers, (attempt, statuses)
    return statuses


def test_ten_thousand_hostile_requests(served: Daemon) -> None:
    before = answer_of(served)
    made = list(attempts(REQUESTS, SEED))
    assert sum(attempt.requests for attempt in made) >= REQUESTS
    with ThreadPoolExecutor(CLIENTS) as clients:
        results = list(clients.map(lambda attempt: carry_out(served, attempt), made))
    counts = Counter(status for statuses in results for status in statuses)
    assert counts[200] > REQUESTS / 20, counts
    assert counts[400] > REQUESTS / 4, counts
    assert {404, 405, 413, 431} <= counts.keys(), counts
    assert answer_of(served) == before
    wait_until(lambda: at_rest(served))
    assert serves(served)


def test_memory_and_descriptors_do_not_grow(served: Daemon) -> None:
    def attack(seed: int) -> None:
        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(lambda attempt: carry_out(served, attempt), attempts(2000, seed)))

    attack(1)
    memory, descriptors = served.resident, served.descriptors
    attack(2)
    wait_until(lambda: served.descriptors <= descriptors)
    assert served.resident < memory + 16 * MIB


def test_half_a_request_is_answered_in_time(served: Daemon) -> None:
    beginnings = [
        b"G",
        b"GET /health HTTP/1.1\r\nHost",
        b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    ]

    def wait_for_answer(beginning: bytes) -> float:
        start = time.monotonic()
        with Wire(served.address) as wire:
            wire.send(beginning)
            answer = wire.answer()
            assert answer is not None
            assert wire.answer() is None
        assert answer.status == 408
        check(answer)
        return time.monotonic() - start

    with ThreadPoolExecutor(len(beginnings)) as clients:
        for seconds in clients.map(wait_for_answer, beginnings):
            assert TIMEOUT_S - 0.1 < seconds < TIMEOUT_S + 1


def test_a_request_that_trickles_in_is_cut_off_and_another_is_not(served: Daemon) -> None:
    body = b'{"content": "the one"}'
    whole = post("/tokenize", body)
    with Wire(served.address) as wire:
        for byte in whole[:10]:
            wire.send(bytes([byte]))
            time.sleep(TIMEOUT_S / 20)
        wire.send(whole[10:])
        answer = wire.answer()
        assert answer is not None
        assert answer.status == 200
        for byte in whole[:25]:
            wire.send(bytes([byte]))
            time.sleep(TIMEOUT_S / 20)
        late = wire.answer()
        assert late is not None
        assert late.status == 408


def test_a_connection_on_which_nothing_comes_is_closed(served: Daemon) -> None:
    def is_closed(said: bytes) -> bool:
        with Wire(served.address) as wire:
            wire.send(said)
            return wire.answer() is None

    with ThreadPoolExecutor(3) as clients:
        assert all(clients.map(is_closed, (b"", b"\r\n", b"\r\n\r\n\r\n")))


def test_a_running_answer_is_not_cut_off_by_what_follows_it(served: Daemon) -> None:
    body = {"prompt": "the", "max_tokens": 40, "stream": True, "ignore_eos": True}
    for rest in (b"\x16\x03\x01 garbage\r\n\r\n", b"GET /half", b"\r\n"):
        with Wire(served.address) as wire:
            wire.send(post("/v1/completions", json.dumps(body).encode()) + rest)
            answer = wire.answer()
            assert answer is not None
            check(answer)
            assert answer.body.count(b"data: ") > 3


def test_a_wish_for_another_protocol_is_passed_over(served: Daemon) -> None:
    with Wire(served.address) as wire:
        wire.send(get("/health", b"Connection: upgrade", b"Upgrade: h2c") + b"PRI * HTTP/2.0\r\n\r\n")
        answer = wire.answer()
        assert answer is not None
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert wire.answer() is None


def test_a_request_that_is_answered_before_it_came_whole_is_answered_once(served: Daemon) -> None:
    """Whatever comes behind, or does not: its client may use the connection for others by then."""
    early = [
        (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n{", b""),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", b""),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"no chunk\r\n"),
    ]

    def has_one(parts: tuple[bytes, bytes]) -> bool:
        with Wire(served.address) as wire:
            wire.send(parts[0])
            answer = wire.answer()
            assert answer is not None
            check(answer)
            wire.send(parts[1])
            return wire.answer() is None

    with ThreadPoolExecutor(len(early)) as clients:
        assert all(clients.map(has_one, early))


def test_requests_ahead_of_their_answers_are_bounded(served: Daemon) -> None:
    memory = served.resident
    with Wire(served.address) as wire:
        wire.send(get("/health") * 50_000)
        answers = 0
        while (answer := wire.answer()) is not None:
            assert answer.status == 200
            answers += 1
    assert 0 < answers < 50_000
    assert served.resident < memory + 16 * MIB
    assert serves(served)


@pytest.mark.parametrize("declared", [9 * MIB, 10**15])
def test_a_giant_body_is_refused_before_it_comes(served: Daemon, declared: int) -> None:
    with Wire(served.address) as wire:
        wire.send(f"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: {declared}\r\n\r\n".encode())
        answer = wire.answer()
        assert answer is not None
        assert answer.status == 413
        check(answer)


def test_a_giant_body_of_no_declared_size_is_refused_on_the_way(served: Daemon) -> None:
    memory = served.resident
    with Wire(served.address) as wire:
        wire.send(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(12):
            wire.send(b"100000\r\n" + b" " * MIB + b"\r\n")
        answer = wire.answer()
        assert answer is not None
        assert answer.status == 413
    assert served.resident < memory + 40 * MIB


def test_a_head_without_end_is_refused_on_the_way(served: Daemon) -> None:
    with Wire(served.address) as wire:
        wire.send(b"GET /health HTTP/1.1\r\nA: " + b"b" * MIB)
        answer = wire.answer()
        assert answer is not None
        assert answer.status == 431
        check(answer)


def test_more_connections_than_there_may_be_are_told_so(served: Daemon) -> None:
    held = [Wire(served.address) for _ in range(CONNECTIONS)]
    try:
        with Wire(served.address) as wire:
            answer = wire.answer()
            assert answer is not None
            assert answer.status == 503
            assert answer.headers["retry-after"]
            check(answer)
    finally:
        for wire in held:
            wire.__exit__()

    wait_until(lambda: serves(served))


def test_who_holds_every_connection_loses_them(served: Daemon) -> None:
    held = [Wire(served.address) for _ in range(CONNECTIONS)]
    try:
        for wire in held:
            wire.send(b"GET / HTTP/1.1\r\n")
        assert not serves(served)
        start = time.monotonic()
        wait_until(lambda: serves(served))
        assert time.monotonic() - start < TIMEOUT_S + LINGER_S + 1
    finally:
        for wire in held:
            wire.__exit__()


def test_client_text_in_a_message_is_bounded_and_on_one_line(served: Daemon) -> None:
    with served.client() as client:
        for response in (
            client.get("/" + "%0a%0d%e2%80%a8x" * 900),
            client.get("/v1/models/" + "y" * 9000),
            client.post("/tokenize", json={"model": "z\n\r\u2028" * 5000, "content": ""}),
        ):
            assert isinstance(response, httpx.Response)
            message = response.json()["error"]["message"]
            assert response.status_code == 404
            assert len(message) <= 1000
            assert message.isprintable()
