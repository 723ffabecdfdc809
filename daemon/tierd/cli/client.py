"""A client of a running daemon: JSON over HTTP, and event streams, by TCP or a Unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from tierd import __version__
from tierd.errors import DaemonError, SettingsError

# The server sends at least a comment every ten seconds.
TIMEOUT_S = 60.0

T = TypeVar("T")


class RefusalError(DaemonError):
    """The daemon says no. code: what it calls the reason, "" where it does not say."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class Begun(NamedTuple):
    """The answer to what may take long. place: the path where it can be followed; "" where it is over."""

    answer: Any
    place: str


class Client:
    """Calls one daemon. Every method raises DaemonError, whose message is the daemon's where it sent one.

    place: what messages call the daemon. local: whether it must be on this machine.
    """

    def __init__(
        self,
        place: str,
        connect: Callable[[], http.client.HTTPConnection],
        *,
        base: str = "",
        token: str = "",
        local: bool = False,
    ) -> None:
        """Use `at_url` or `at_socket`. base: begins every path."""
        self.place = place
        self.local = local
        self._connect = connect
        self._base = base
        self._headers = {"User-Agent": f"tierd/{__version__}", "Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def get(self, path: str) -> Any:
        """Return the JSON of a path."""
        with self._ask("GET", path, None) as response:
            return self._json(response.read())

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post JSON and return the JSON of the answer."""
        with self._ask("POST", path, body) as response:
            return self._json(response.read())

    def begin(self, path: str, body: Mapping[str, Any]) -> Begun:
        """Post JSON and return the answer, which may come before what was asked for is done."""
        with self._ask("POST", path, body) as response:
            answer = self._json(response.read())
            if response.status != HTTPStatus.ACCEPTED:
                return Begun(answer, "")
            place = response.headers.get("Location", "")
            if not place.startswith("/"):
                raise DaemonError(f"{self.place} does not say where its work can be followed; is it tierd?")
            return Begun(answer, place)

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
        """Post JSON and yield the JSON of each event until the stream says it is done.

        Closing the iterator closes the connection, which cancels the request.
        """
        return self._events("POST", path, body)

    def follow(self, path: str) -> Generator[Any, None, None]:
        """Yield the JSON of each event at a path until the stream says it is done.

        Closing the iterator closes the connection.
        """
        return self._events("GET", path, None)

    def _events(self, method: str, path: str, body: Mapping[str, Any] | None) -> Generator[Any, None, None]:
        with self._ask(method, path, body, accept="text/event-stream") as response:
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event = self._json(data)
                if isinstance(event, dict) and event.keys() == {"error"}:
                    raise _refusal(event, f"{self.place} sent an error")
                yield event
        raise DaemonError(f"{self.place} closed the connection in the middle of the answer")

    def shaped(self, answer: Any, shape: type[T]) -> T:
        """Return JSON that the daemon sent as a struct."""
        try:
            return msgspec.convert(answer, shape)
        except msgspec.ValidationError as error:
            raise DaemonError(f"{self.place} sent JSON of another shape; is it tierd? ({error})") from error

    @contextmanager
    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, accept: str = "application/json"
    ) -> Iterator[http.client.HTTPResponse]:
        content = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Accept": accept}
        with closing(self._connect()) as connection:
            try:
                connection.request(method, self._base + path, content, headers)
                with connection.getresponse() as response:
                    if response.status not in (HTTPStatus.OK, HTTPStatus.ACCEPTED):
                        raise self._refused(response)
                    yield response
            except TimeoutError as error:
                raise DaemonError(f"{self.place} has been silent for {TIMEOUT_S:.0f} s") from error
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                raise DaemonError(
                    f"cannot talk to {self.place}: {reason}; is `tierd serve` running?"
                ) from error

    def _refused(self, response: http.client.HTTPResponse) -> RefusalError:
        try:
            body = json.loads(response.read())
        except ValueError:
            body = None
        return _refusal(body, f"{self.place} answered {response.status} {response.reason}; is it tierd?")

    def _json(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise DaemonError(f"{self.place} sent what is not JSON; is it tierd?") from error


def _refusal(body: Any, otherwise: str) -> RefusalError:
    """Return an error in OpenAI's shape, its message on one line; `otherwise` is that of another shape."""
    try:
        error = body["error"]
        message = " ".join(str(error["message"]).split())
        return RefusalError(message or otherwise, str(error.get("code") or ""))
    except (AttributeError, KeyError, TypeError):
        return RefusalError(otherwise)


def at_url(url: str, *, token: str = "") -> Client:
    """Return a client of `http://HOST[:PORT][/PATH]` or https. Raises SettingsError for anything else."""
    try:
        connect, path = _split(url)
    except (ValueError, http.client.InvalidURL) as error:
        raise SettingsError(f"--url must be a URL such as http://127.0.0.1:8080, not {url!r}") from error
    return Client(url, connect, base=path.rstrip("/").removesuffix("/v1"), token=token)


def _split(url: str) -> tuple[Callable[[], http.client.HTTPConnection], str]:
    """Return what makes connections to the host of a URL, and the path. Raises ValueError, InvalidURL."""
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ValueError(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connect = partial(kind, host, port, timeout=TIMEOUT_S)
    # What could not be sent is refused here, before there is a connection to close.
    host.encode("idna")
    parts.path.encode("ascii")
    connect()
    return connect, parts.path


def at_socket(path: Path) -> Client:
    """Return a client of a Unix socket."""
    return Client(str(path), lambda: _UnixConnection(path), local=True)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(self._path))
