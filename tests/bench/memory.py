"""The most private memory that another process has: what is resident and no file's, looked at often."""

from __future__ import annotations

import threading
from pathlib import Path

INTERVAL_S = 0.002


def status(pid: int) -> dict[str, int]:
    """Return the sizes in /proc/PID/status, in bytes: of proc(5), VmHWM, RssAnon, RssFile, RssShmem."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in fields}


class Peak:
    """While it is entered, a thread watches a process. bytes: the most RssAnon and RssShmem so far."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL_S):
            self._look()

    def _look(self) -> None:
        now = status(self._pid)
        # A process that has ended has no sizes any more.
        self.bytes = max(self.bytes, now.get("RssAnon", 0) + now.get("RssShmem", 0))

    def __enter__(self) -> Peak:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
