"""Asks a daemon for /health again and again, from a process of its own, until its standard input ends.

Run as `pulse.py HOST PORT`. Prints the longest that an answer took, in seconds.
"""

from __future__ import annotations

import http.client
import select
import sys
import time


def main(host: str, port: int) -> None:
    """Ask, about 50 times a second."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    worst = 0.0
    while not select.select([sys.stdin], (), (), 0.02)[0]:
        start = time.monotonic()
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        assert response.status == 200
        worst = max(worst, time.monotonic() - start)
    print(worst)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
