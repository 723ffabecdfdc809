"""A command at a pseudo-terminal: what a person would type, and see."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 20

# Makes the pseudo-terminal the controlling one, so that Ctrl-C becomes a signal, which processes in the
# background are born to ignore; then is the command.
_RUN = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "tierd", *sys.argv[1:]])
"""


class Terminal:
    """The terminal's side: keys go in, characters come out."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._shown = ""

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    def type(self, keys: str) -> None:
        """Press keys. Wait for the prompt first: what comes earlier is not the line editor's."""
        os.write(self._descriptor, keys.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C once the program waits: the line editor would not see it before its next key."""
        deadline = time.monotonic() + PATIENCE_S
        status = Path(f"/proc/{self.process.pid}/stat")
        while status.read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < deadline, "the program does not come to rest"
            time.sleep(0.001)
        self.type("\x03")

    def until(self, wanted: str) -> str:
        """Wait until something is shown; return what came up to and with it, lines ended by \\n."""
        deadline = time.monotonic() + PATIENCE_S
        while wanted not in self._shown:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._descriptor], [], [], max(0, left))
            assert ready, f"{wanted!r} was not shown, but {self._shown!r}"
            self._shown += os.read(self._descriptor, 65536).decode().replace("\r", "")
        before, _, self._shown = self._shown.partition(wanted)
        return before + wanted

    def close(self) -> None:
        """Close the window: the terminal is gone."""
        os.close(self._descriptor)
        self._descriptor = -1

    def code(self) -> int:
        return self.process.wait(PATIENCE_S)


@contextmanager
def terminal(*arguments: str, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Run tierd at a terminal that knows no colours, unless `environment` says otherwise."""
    mine, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", _RUN, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb", **environment},
    ) as process:
        os.close(theirs)
        shown = Terminal(process, mine)
        try:
            yield shown
        finally:
            process.kill()
            if shown.is_open:
                shown.close()
