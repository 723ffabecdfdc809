"""Raw HTTP over a socket: what was sent is in the caller's hand to the byte, what comes back is checked."""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import BinaryIO

PATIENCE_S = 20.0


@dataclass(frozen=True)
class Answer:
    """A response. body: with its framing taken off."""

    status: int
    headers: dict[str, str]
    body: bytes


class Wire:
    """One connection to a server; a context manager."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)
        self._file: BinaryIO = self.socket.makefile("rb")

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes; a server that has closed meanwhile is no fault of it."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def finish_sending(self) -> None:
        """Say that nothing more will come."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def drop(self) -> None:
        """Be gone at once: the server gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def answer(self, head: bool = False) -> Answer | None:
        """Read one response; None when the connection is closed instead. head: of a HEAD request."""
        try:
            return self._read(head)
        except ConnectionResetError:
            return None

    def _read(self, head: bool) -> Answer | None:
        line = self._file.readline()
        if not line:
            return None
        version, status, _ = line.split(b" ", 2)
        assert version == b"HTTP/1.1", line
        headers: dict[str, str] = {}
        while (line := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        if status == b"100":
            return self._read(head)
        if head or status == b"204":
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = self._chunks()
        else:
            body = self._file.read(int(headers["content-length"]))
        return Answer(int(status), headers, body)

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self._file.readline(), 16):
            body += self._file.read(size)
            assert self._file.readline() == b"\r\n"
        assert self._file.readline() == b"\r\n"
        return body


def check(answer: Answer) -> None:
    """Hold an answer to what clients may rely on: errors have OpenAI's shape and tell nothing of our code."""
    assert b"Traceback" not in answer.body, answer
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        assert answer.body.endswith(b"data: [DONE]\n\n"), answer
        return
    if answer.status == 200 and kind.startswith("text/html"):  # the status page
        assert "content-security-policy" in answer.headers, answer
        return
    assert kind.startswith("application/json"), answer
    if not answer.body:  # of a HEAD request
        return
    content = json.loads(answer.body)
    if answer.status == 200:
        assert "error" not in content, answer
        return
    assert answer.status in (400, 401, 403, 404, 405, 408, 413, 429, 431, 503), answer
    assert set(content) == {"error"}, answer
    assert set(content["error"]) == {"message", "type", "param", "code"}, answer
    message = content["error"]["message"]
    assert message, answer
    assert "\n" not in message, answer
    assert len(message) < 2000, answer
