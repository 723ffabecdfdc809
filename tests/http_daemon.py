"""A `tierd serve` of its own process, for tests of signals and of memory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tiny import write_llama


@dataclass(frozen=True)
class Daemon:
    """Its process, its address, and the folder of its log, tierd.log, and admin socket, tierd/admin.sock."""

    process: subprocess.Popen[str]
    url: str
    folder: Path

    def end(self, name: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(name)

    def resident(self) -> int:
        """Return the bytes of memory that it holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024


@contextmanager
def daemon(folder: Path, *, context: int, settings: str) -> Iterator[Daemon]:
    """Serve a tiny model called "tiny" on the host kernels. settings: TOML, the model's own at its end."""
    write_llama(folder / "tiny.gguf", context=context)
    config = folder / "tierd.toml"
    config.write_text(f"server.listen = '127.0.0.1:0'\n{settings}\nid = 'tiny'\npath = 'tiny.gguf'\n")
    command = [sys.executable, "-m", "tierd", "serve", "--config", str(config)]
    environment = os.environ | {"XDG_RUNTIME_DIR": str(folder)}
    with (
        (folder / "tierd.log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process,
    ):
        try:
            assert process.stdout is not None
            ready = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert ready is not None
            yield Daemon(process, ready[0], folder)
        finally:
            process.kill()
