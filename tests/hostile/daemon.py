"""A daemon in a process of its own, as `tierd serve` starts it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import httpx


@dataclass(frozen=True)
class Daemon:
    """A running daemon. log: where its standard error goes. socket: that of its admin API."""

    process: subprocess.Popen[str]
    url: str
    log: Path
    socket: Path

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    @property
    def descriptors(self) -> int:
        """How many files and sockets it has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    @property
    def resident(self) -> int:
        """Bytes of memory that it occupies."""
        match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert match is not None
        return int(match[1]) * 1024

    def client(self, timeout: float = 60.0) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=timeout, trust_env=False)

    def flush(self) -> int:
        """Empty the prefix caches; return how many pages that freed."""
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.socket)), timeout=60) as client:
            answer = client.post("http://admin/flush")
        assert answer.status_code == 200, answer.text
        return int(answer.json()["pages_freed"])


def start(config: Path, socket: Path, settings: str, errors: IO[str]) -> subprocess.Popen[str]:
    config.write_text(f'[admin]\nsocket = "{socket}"\n[server]\nlisten = "127.0.0.1:0"\n{settings}')
    return subprocess.Popen(
        [sys.executable, "-m", "tierd", "serve", "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


@contextmanager
def daemon(folder: Path, settings: str) -> Iterator[Daemon]:
    """Run a daemon with these settings; it must end in good order, its log free of failures.

    settings: the rest of `[server]`, then other tables.
    """
    config, log = folder / "tierd.toml", folder / "tierd.log"
    with (
        TemporaryDirectory() as place,  # a socket's path must be short
        log.open("w") as errors,
        start(config, Path(place, "admin.sock"), settings, errors) as process,
    ):
        try:
            assert process.stdout is not None
            ready = re.search(r"ready at (http://\S+)", process.stdout.readline())
            assert ready is not None, log.read_text()
            yield Daemon(process, ready[1], log, Path(place, "admin.sock"))
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
    written = log.read_text()
    assert "Traceback" not in written, written[-5000:]
    assert not re.search(r" (ERROR|CRITICAL) ", written), written[-5000:]
