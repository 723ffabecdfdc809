"""A client of a running daemon: JSON over HTTP, and event streams, by TCP or a Unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from tierd import __version__
from tierd.errors import DaemonError, SettingsError

# The server sends at least a comment every ten seconds.
TIMEOUT_S = 60.0

T = TypeVar("T")


class Client:
    """Calls one daemon. Every method raises DaemonError, whose message is the daemon's where it sent one."""

    def __init__(
        self,
        place: str,
        connect: Callable[[], http.client.HTTPConnection],
        *,
        base: str = "",
        token: str = "",
    ) -> None:
        """Use `at_url` or `at_socket`. place: what messages call the daemon. base: begins every path."""
        self.place = place
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

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
        """Post JSON and yield the JSON of each event until the stream says it is done.

        Closing the iterator closes the connection, which cancels the request.
        """
        with self._ask("POST", path, body) as response:
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event = self._json(data)
                if isinstance(event, dict) and "error" in event:
                    raise DaemonError(_message(event) or f"{self.place} sent an error")
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
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> Iterator[http.client.HTTPResponse]:
        content = None if body is None else json.dumps(body).encode()
        with closing(self._connect()) as connection:
            try:
                connection.request(method, self._base + path, content, self._headers)
                with connection.getresponse() as response:
                    if response.status != 200:
                        raise self._refusal(response)
                    yield response
            except TimeoutError as error:
                raise DaemonError(f"{self.place} has been silent for {TIMEOUT_S:.0f} s") from error
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                raise DaemonError(
                    f"cannot talk to {self.place}: {reason}; is `tierd serve` running?"
                ) from error

    def _refusal(self, response: http.client.HTTPResponse) -> DaemonError:
        try:
            said = _message(json.loads(response.read()))
        except ValueError:
            said = ""
        return DaemonError(said or f"{self.place} answered {response.status} {response.reason}; is it tierd?")

    def _json(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise DaemonError(f"{self.place} sent what is not JSON; is it tierd?") from error


def _message(body: Any) -> str:
    """Return the message of an error in OpenAI's shape, on one line; "" when it has another shape."""
    try:
        return " ".join(str(body["error"]["message"]).split())
    except (KeyError, TypeError):
        return ""


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
    return Client(str(path), lambda: _UnixConnection(path))


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
