"""What each API key may take: requests at a time, requests and tokens in a minute.

Every POST is a request, except those that end something; tokens are those of its prompts, and those that
are generated for it, as they come. A minute's allowance comes back evenly, 1/60 of it each second, up to the
whole. What a request will generate is not known when it comes: it is served where any token is left, and what
it takes too much must come back before the next one is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tierd.errors import RateLimitError
from tierd.http.auth import OPEN_PATHS, Visit
from tierd.settings import KeySettings

MINUTE_S = 60.0
# When one of a key's requests will have ended nobody knows.
RETRY_S = 1

Clock = Callable[[], float]


def counts(method: str, path: str) -> bool:
    """Whether that is a request of those that are limited."""
    return method == "POST" and path not in OPEN_PATHS and not path.endswith("/cancel")


class Bucket:
    """An allowance by the minute. `level`: what is left; below 0 where more was taken."""

    def __init__(self, limit: int, clock: Clock) -> None:
        """`limit`: of a minute, 1 or more."""
        self.limit = limit
        self._clock = clock
        self._level = float(limit)
        self._when = clock()

    @property
    def level(self) -> float:
        """What is left now."""
        now = self._clock()
        self._level = min(self.limit, self._level + (now - self._when) * self.limit / MINUTE_S)
        self._when = now
        return self._level

    def take(self, amount: int) -> None:
        """Take something, whatever is left."""
        self._level = self.level - amount

    def wait(self, amount: float) -> float:
        """Return the seconds until so much is left, 0 where it is."""
        return max(0.0, (amount - self.level) * MINUTE_S / self.limit)


def _bucket(limit: int, clock: Clock) -> Bucket | None:
    return Bucket(limit, clock) if limit else None


class Allowance:
    """What a key has taken. running: its requests that have not ended."""

    def __init__(self, name: str, limits: KeySettings, clock: Clock) -> None:
        self._name = name
        self._limits = limits
        self._clock = clock
        self.running = 0
        self._requests = _bucket(limits.requests_per_minute, clock)
        self._tokens = _bucket(limits.tokens_per_minute, clock)

    @property
    def rests(self) -> bool:
        """Whether it is as if nothing had ever been taken."""
        buckets = (self._requests, self._tokens)
        return not self.running and all(bucket is None or bucket.level >= bucket.limit for bucket in buckets)

    def change(self, limits: KeySettings) -> None:
        """Go by other limits; a minute's allowance that is another one is whole again."""
        before, self._limits = self._limits, limits
        if limits.requests_per_minute != before.requests_per_minute:
            self._requests = _bucket(limits.requests_per_minute, self._clock)
        if limits.tokens_per_minute != before.tokens_per_minute:
            self._tokens = _bucket(limits.tokens_per_minute, self._clock)

    def begin(self) -> None:
        """Take a request. Raises RateLimitError, and then nothing is taken."""
        most = self._limits.requests
        if most and self.running >= most:
            raise self._refusal(f"{self.running} requests that run, as many as it may", RETRY_S)
        for bucket, what in ((self._requests, "requests"), (self._tokens, "tokens")):
            if bucket is not None and (seconds := bucket.wait(1.0)):
                raise self._refusal(f"had its {bucket.limit} {what} of a minute", seconds)
        if self._requests is not None:
            self._requests.take(1)

    def spend(self, tokens: int) -> None:
        """Take tokens."""
        if self._tokens is not None:
            self._tokens.take(tokens)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return what is left, in OpenAI's headers."""
        told: list[tuple[str, str]] = []
        for bucket, what in ((self._requests, "requests"), (self._tokens, "tokens")):
            if bucket is not None:
                told += [
                    (f"limit-{what}", str(bucket.limit)),
                    (f"remaining-{what}", str(max(0, math.floor(bucket.level)))),
                    (f"reset-{what}", f"{bucket.wait(bucket.limit):.3f}s"),
                ]
        return [(f"x-ratelimit-{name}".encode(), value.encode()) for name, value in told]

    def _refusal(self, why: str, seconds: float) -> RateLimitError:
        who = f"the API key {self._name!r} has" if self._name else "everybody together has"
        wait = math.ceil(seconds)
        return RateLimitError(f"{who} {why}; try again in {wait} s", retry_after=wait)


class Lease:
    """A request's part of an allowance; it runs while anybody holds it."""

    def __init__(self, allowance: Allowance | None = None) -> None:
        """`allowance`: None for what is not limited."""
        self._allowance = allowance
        self._holders = 0
        self._prompt: Sequence[int] = ()

    def hold(self) -> None:
        """Let the request run until this, and whatever else holds it, is released."""
        self._holders += 1
        if self._allowance is not None and self._holders == 1:
            self._allowance.running += 1

    def release(self) -> None:
        """Undo one `hold`."""
        self._holders -= 1
        if self._allowance is not None and not self._holders:
            self._allowance.running -= 1

    def spend(self, tokens: int) -> None:
        """Take tokens that were generated."""
        if self._allowance is not None:
            self._allowance.spend(tokens)

    def feed(self, prompt: Sequence[int]) -> None:
        """Take a prompt's tokens; choices of the same prompt, one after another, count it once."""
        if prompt is not self._prompt:
            self._prompt = prompt
            self.spend(len(prompt))


class Quotas:
    """The allowances of all keys, by name; those that have taken nothing lately are forgotten."""

    def __init__(self, limits: Sequence[KeySettings], clock: Clock = time.monotonic) -> None:
        """`limits`: those without a name are for all names that no others have."""
        self._limits = {each.name: each for each in limits}
        self._clock = clock
        self._allowances: dict[str, Allowance] = {}

    def change(self, limits: Sequence[KeySettings]) -> None:
        """Go by other limits from now on. May be called from any thread."""
        self._limits = {each.name: each for each in limits}
        for name, allowance in list(self._allowances.items()):
            allowance.change(self._limits_of(name) or KeySettings(name=name))

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._allowances)

    def of(self, name: str) -> Allowance | None:
        """Return what a key may take, None where it may take all."""
        limits = self._limits_of(name)
        if limits is None:
            return None
        if name not in self._allowances:
            self._allowances = {key: one for key, one in self._allowances.items() if not one.rests}
            self._allowances[name] = Allowance(name, limits, self._clock)
        return self._allowances[name]

    def _limits_of(self, name: str) -> KeySettings | None:
        return self._limits.get(name) or self._limits.get("")


class QuotaGate:
    """Lets requests pass for which their key has enough left. Behind KeyGate.

    The lease of a request is in `scope["state"]["lease"]`.
    """

    def __init__(self, app: ASGIApp, quotas: Quotas) -> None:
        self.app = app
        self._quotas = quotas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises RateLimitError."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit: Visit = scope["state"]["visit"]
        counted = counts(scope["method"], scope["path"])
        allowance = self._quotas.of(visit.name) if counted else None
        if allowance is None:
            scope["state"]["lease"] = Lease()
            await self.app(scope, receive, send)
            return

        async def telling_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *allowance.headers()]
            await send(message)

        allowance.begin()
        lease = scope["state"]["lease"] = Lease(allowance)
        lease.hold()
        try:
            await self.app(scope, receive, telling_send)
        finally:
            lease.release()
