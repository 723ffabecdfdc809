"""What a key may take: the books by a clock of the test, then a live server that keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from live import Gate, Gated, Live, error_of, serve, wait_until
from tierd.backends.null import NullBackend
from tierd.errors import RateLimitError
from tierd.http.keys import line_of
from tierd.http.quotas import Allowance, Bucket, Lease, Quotas
from tierd.settings import KeySettings, ModelSettings, ServerSettings

ALICE, BOB = {"x-api-key": "of-alice"}, {"x-api-key": "of-bob"}
TEXT = {"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True}


class Time:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(allowance: Allowance) -> tuple[str, int]:
    with pytest.raises(RateLimitError) as caught:
        allowance.begin()
    return str(caught.value), caught.value.retry_after


def allowed(limits: KeySettings, clock: Time, name: str = "") -> Allowance:
    allowance = Quotas([limits], clock).of(name)
    assert allowance is not None
    return allowance


def test_a_bucket_fills_evenly_and_owes() -> None:
    clock = Time()
    bucket = Bucket(60, clock)
    bucket.take(75)
    assert (bucket.level, bucket.wait(1), bucket.wait(60)) == (-15, 16, 75)
    clock.now += 16
    assert (bucket.level, bucket.wait(1)) == (1, 0)
    clock.now += 1000
    assert bucket.level == 60


def test_requests_of_a_minute() -> None:
    clock = Time()
    allowance = allowed(KeySettings(requests_per_minute=2), clock, "alice")
    allowance.begin()
    allowance.begin()
    assert refused(allowance) == (
        "the API key 'alice' has had its 2 requests of a minute; try again in 30 s",
        30,
    )
    clock.now += 29.5
    assert refused(allowance)[1] == 1
    clock.now += 0.5
    allowance.begin()
    assert refused(allowance)[1] == 30


def test_tokens_of_a_minute_are_taken_as_they_come_and_may_be_too_many() -> None:
    clock = Time()
    allowance = allowed(KeySettings(tokens_per_minute=60, requests_per_minute=100), clock)
    lease = Lease(allowance)
    allowance.begin()
    prompt = (1,) * 50
    lease.feed(prompt)
    lease.feed(prompt)
    lease.spend(9)
    allowance.begin()
    lease.feed((2,) * 50)
    assert refused(allowance) == (
        "everybody together has had its 60 tokens of a minute; try again in 50 s",
        50,
    )
    assert allowance.headers()[:2] == [
        (b"x-ratelimit-limit-requests", b"100"),
        (b"x-ratelimit-remaining-requests", b"98"),
    ]
    assert allowance.headers()[3:] == [
        (b"x-ratelimit-limit-tokens", b"60"),
        (b"x-ratelimit-remaining-tokens", b"0"),
        (b"x-ratelimit-reset-tokens", b"109.000s"),
    ]
    clock.now += 50
    allowance.begin()


def test_a_request_runs_while_anybody_holds_it() -> None:
    allowance = allowed(KeySettings(requests=1), Time(), "alice")
    allowance.begin()
    lease = Lease(allowance)
    lease.hold()
    lease.hold()
    said = "the API key 'alice' has 1 requests that run, as many as it may; try again in 1 s"
    assert refused(allowance) == (said, 1)
    lease.release()
    assert refused(allowance) == (said, 1)
    lease.release()
    allowance.begin()
    assert allowance.headers() == []


def test_names_have_limits_of_their_own_or_those_of_all_others() -> None:
    quotas = Quotas([KeySettings(requests=1), KeySettings(name="alice", requests=2)], Time())
    for name, most in (("alice", 2), ("bob", 1), ("carol", 1)):
        for _ in range(most):
            allowance = quotas.of(name)
            assert allowance is not None
            allowance.begin()
            Lease(allowance).hold()
        assert quotas.of(name) is allowance
        assert refused(allowance)[0].startswith(f"the API key {name!r} has {most} requests")
    assert Quotas([KeySettings(name="alice")]).of("bob") is None


def test_what_rests_is_forgotten() -> None:
    clock = Time()
    quotas = Quotas([KeySettings(requests=1, requests_per_minute=60)], clock)
    busy = quotas.of("busy")
    assert busy is not None
    busy.begin()
    running = quotas.of("running")
    lease = Lease(running)
    lease.hold()
    for number in range(100):
        assert quotas.of(f"name-{number}") is not None
        assert len(quotas) == 3
    clock.now += 1
    quotas.of("one more")
    assert len(quotas) == 2
    assert quotas.of("running") is running


@contextmanager
def limited(folder: Path, model: ModelSettings, *limits: KeySettings) -> Iterator[Gated]:
    path = folder / "keys"
    path.write_text(f"{line_of('alice', 'of-alice')}\n{line_of('bob', 'of-bob')}\n")
    path.chmod(0o600)
    gate = Gate()
    backend = NullBackend(before_step=gate)
    with serve([model], backend=backend, server=ServerSettings(api_keys_file=path), keys=limits) as server:
        try:
            yield Gated(server, gate)
        finally:
            gate.open()


def ask(live: Live, headers: dict[str, str], **fields: object) -> dict[str, str]:
    """Have a text completed; return the headers of the answer."""
    answer = live.http.post("/v1/completions", json=TEXT | fields, headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.headers)


def test_requests_at_a_time_are_those_of_a_key(tmp_path: Path, tiny_model: ModelSettings) -> None:
    with limited(tmp_path, tiny_model, KeySettings(name="alice", requests=1)) as gated:
        live = gated.live
        background = {"input": "a", "background": True, "max_output_tokens": 4}
        made = live.http.post("/v1/responses", json=background, headers=ALICE)
        assert made.status_code == 200
        wait_until(lambda: live.engine.snapshot.models["tiny"].running == 1)
        for path, body in (("/v1/completions", TEXT), ("/tokenize", {"content": "a"})):
            refusal = live.http.post(path, json=body, headers=ALICE)
            assert (refusal.status_code, refusal.headers["retry-after"]) == (429, "1")
            error = error_of(refusal)
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        message = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "a"}]}
        refusal = live.http.post("/v1/messages", json=message, headers=ALICE)
        assert (refusal.status_code, refusal.json()["error"]["type"]) == (429, "rate_limit_error")
        place = f"/v1/responses/{made.json()['id']}"
        assert live.http.get(place, headers=ALICE).status_code == 200
        assert live.http.post("/tokenize", json={"content": "a"}, headers=BOB).status_code == 200
        assert live.http.post(f"{place}/cancel", headers=ALICE).status_code == 200
        gated.gate.open()
        wait_until(lambda: live.engine.snapshot.models["tiny"].running == 0)
        ask(live, ALICE)
        ask(live, BOB)


def test_a_minutes_allowance_is_told_and_kept(tmp_path: Path, tiny_model: ModelSettings) -> None:
    limits = KeySettings(requests_per_minute=3, tokens_per_minute=600)
    with limited(tmp_path, tiny_model, limits, KeySettings(name="bob")) as gated:
        gated.gate.open()
        told = ask(gated.live, ALICE)
        assert (told["x-ratelimit-limit-requests"], told["x-ratelimit-remaining-requests"]) == ("3", "2")
        assert told["x-ratelimit-limit-tokens"] == "600"
        assert int(told["x-ratelimit-remaining-tokens"]) in range(593, 597)
        stream = ask(gated.live, ALICE, stream=True, n=2)
        assert stream["x-ratelimit-remaining-requests"] == "1"
        after = ask(gated.live, ALICE, max_tokens=1)
        assert int(after["x-ratelimit-remaining-tokens"]) in range(600 - 7 - 11 - 4, 600 - 7 - 11)
        refusal = gated.live.http.post("/v1/completions", json=TEXT, headers=ALICE)
        assert refusal.status_code == 429
        assert int(refusal.headers["retry-after"]) in range(1, 21)
        assert "x-ratelimit-limit-requests" not in ask(gated.live, BOB)


def test_without_keys_a_limit_is_that_of_all_clients(tiny_model: ModelSettings) -> None:
    with serve([replace(tiny_model)], keys=(KeySettings(tokens_per_minute=1),)) as live:
        ask(live, {})
        refusal = live.http.post("/v1/completions", json=TEXT)
        assert refusal.status_code == 429
        assert error_of(refusal)["message"].startswith("everybody together has had its 1 tokens of a minute")
        assert live.get("/v1/models").status_code == 200


def test_limits_that_change_hold_from_then_on_for_those_who_run_too() -> None:
    clock = Time()
    quotas = Quotas([KeySettings(requests=1, tokens_per_minute=60)], clock)
    alice = quotas.of("alice")
    assert alice is not None
    lease = Lease(alice)
    lease.hold()
    lease.spend(60)
    assert refused(alice)[0].startswith("the API key 'alice' has 1 requests that run")
    quotas.change([KeySettings(requests=2, tokens_per_minute=60)])
    assert quotas.of("alice") is alice
    assert "had its 60 tokens of a minute" in refused(alice)[0]  # what was taken is
    quotas.change([KeySettings(name="alice", requests=2, tokens_per_minute=120)])
    alice.begin()
    assert dict(alice.headers())[b"x-ratelimit-remaining-tokens"] == b"120"
    assert quotas.of("bob") is None
    quotas.change([])
    alice.begin()
    assert alice.headers() == []
    assert quotas.of("alice") is None
