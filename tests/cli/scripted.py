"""A daemon's admin API by script: answers, and the views of one operation, sent as the test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ID = "activate-1-00c0ffee"
PLACE = f"/operations/{ID}"
PHASES = [{"name": "pause", "seconds": 0.0031}, {"name": "rearm", "seconds": 0.012}]


def view(**changes: Any) -> dict[str, Any]:
    """Return an operation as JSON: by default one that has just begun to bring "smol" to the GPU."""
    return {
        "id": ID,
        "kind": "activate",
        "model": "smol",
        "state": "running",
        "phase": "",
        "phases": [],
        "done": 0,
        "total": 0,
        "error": "",
        "created": 1.0,
        "seconds": 0.0,
    } | changes


# From the beginning to the end of a switch.
BEGUN = view()
PAUSING = view(phase="pause")
REARMING = view(phase="rearm", phases=PHASES[:1], seconds=0.004)
HALF_WAY = view(phase="rearm", phases=PHASES[:1], done=1, total=2, seconds=0.01)
DONE = view(state="done", phases=PHASES, seconds=0.0161)
FAILED = view(state="failed", error="the device is lost")


@dataclass
class Script:
    """What the daemon does.

    answers: (status, JSON) by path, of GETs and POSTs; where it has none, POSTs begin the operation. events:
    what a stream of that sends; later: the rest, after `release`. asked: the POSTs so far; followed: the
    streams so far.
    """

    url: str
    answers: dict[str, tuple[int, Any]]
    events: list[Any] = field(default_factory=lambda: [PAUSING, REARMING, HALF_WAY, DONE])
    location: str = PLACE
    later: list[Any] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    followed: int = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    script: Script

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.script.asked.append((self.path, json.loads(body)))
        status, answer = self.script.answers.get(self.path, (202, BEGUN))
        self._send(status, answer, {"Location": self.script.location} if status == 202 else {})

    def do_GET(self) -> None:
        if self.path == PLACE and self.headers["Accept"] == "text/event-stream":
            self._stream()
        else:
            self._send(*self.script.answers[self.path], {})

    def _send(self, status: int, answer: Any, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def _stream(self) -> None:
        self.script.followed += 1
        if PLACE in self.script.answers and self.script.answers[PLACE][0] != 200:
            self._send(*self.script.answers[PLACE], {})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self._events(self.script.events)
        if self.script.later:
            self.script.release.wait(20)
            self._events(self.script.later)

    def _events(self, events: list[Any]) -> None:
        for event in events:
            data = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write(f": keep-alive\n\ndata: {data}\n\n".encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextmanager
def scripted() -> Iterator[Script]:
    """Run such a daemon."""

    class Handler(_Handler):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Handler.script = script = Script(f"http://127.0.0.1:{server.server_port}", {})
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield script
        finally:
            script.release.set()
            server.shutdown()
            thread.join()
