"""Asks a daemon for /health again and again, from a process of its own, until its standard input ends.

Run as `pulse.py HOST PORT PID`. Prints the longest that an answer took, in seconds, less what the threads of
that process waited for a core meanwhile: where others keep the machine busy that is no fault of theirs.
"""

from __future__ import annotations

import http.client
import select
import sys
import time
from pathlib import Path


def waits(process: int) -> dict[str, float]:
    """Return for how long each thread of a process has waited for a core, as schedstat counts."""
    found = {}
    for thread in Path(f"/proc/{process}/task").iterdir():
        try:
            found[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
    return found


def main(host: str, port: int, process: int) -> None:
    """Ask, about 50 times a second."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    worst = 0.0
    while not select.select([sys.stdin], (), (), 0.02)[0]:
        before, start = waits(process), time.monotonic()
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        assert response.status == 200
        took = time.monotonic() - start
        waited = sum(seconds - before.get(thread, 0) for thread, seconds in waits(process).items())
        worst = max(worst, took - waited)
    print(worst)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
