"""Time from typing `make serve` to the first token of an answer, and see what the answer says.

Usage: python tests/bench/first_token.py [--within SECONDS] [--expect WORD]

Run it once more when it has had to build or fetch something. Exit code 1 when the answer came late or
lacks the word.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
QUESTION = "Name the capital of France."
PATIENCE_S = 900


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def connect(port: int, server: subprocess.Popen[bytes]) -> http.client.HTTPConnection:
    """Connect as soon as the server listens."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"make serve ended with code {server.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.connect()
        except ConnectionRefusedError:
            time.sleep(0.005)
        else:
            return connection
    raise SystemExit(f"make serve does not listen after {PATIENCE_S} s")


def ask(port: int, server: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield the pieces of a streamed answer, asking again while the model is loading."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "stream": True}
    while True:
        connection = connect(port, server)
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        if response.status != 503:
            break
        connection.close()
        time.sleep(0.005)
    if response.status != 200:
        raise SystemExit(f"the server answered {response.status}: {response.read().decode()}")
    for line in response:
        data = line.removeprefix(b"data: ").strip()
        if line.startswith(b"data: ") and data != b"[DONE]":
            for choice in json.loads(data)["choices"]:
                yield choice["delta"].get("content") or ""
    connection.close()


def measure() -> tuple[float, str]:
    """Return the seconds to the first token, and the whole answer."""
    port = free_port()
    started = time.monotonic()
    server = subprocess.Popen(
        ["make", "serve", f"LISTEN=127.0.0.1:{port}"],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        seconds, answer = 0.0, ""
        for piece in ask(port, server):
            if piece and not answer:
                seconds = time.monotonic() - started
            answer += piece
        return seconds, answer
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGINT)
            server.wait(timeout=30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--within", type=float, default=3.0, help="seconds allowed (3)")
    parser.add_argument("--expect", default="Paris", help="word that the answer must hold (Paris)")
    options = parser.parse_args()
    seconds, answer = measure()
    print(f"{QUESTION} {answer}")
    print(f"first token after {seconds:.2f} s; {options.within:g} s allowed")
    return 0 if answer and seconds <= options.within and options.expect in answer else 1


if __name__ == "__main__":
    sys.exit(main())
