"""What Python and HTTP cost: CPU time of the server for each token, with a device that computes nothing.

Usage: python tests/bench/overhead.py [--clients N] [--tokens N] [--rounds N]

A live server streams to clients in a process of their own, which does not count. Everything else does: the
engine, its runner, sampling, decoding of text, framing and sending.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import tiny  # noqa: E402
from live import serve  # noqa: E402
from tierd.backends.null import NullBackend, NullExecutor  # noqa: E402
from tierd.backends.protocol import LogitsResult  # noqa: E402
from tierd.settings import GPUSettings, ModelSettings  # noqa: E402


class IdleExecutor(NullExecutor):
    """Answers each row with the same logits."""

    def collect(self) -> LogitsResult:
        rows = self._submitted.popleft().logit_rows
        logits = np.zeros((rows, self.vocabulary), np.float32)
        logits[:, ord("a")] = 1.0
        return LogitsResult(logits)


class IdleBackend(NullBackend):
    """Puts models on an IdleExecutor."""

    def compile(self, plan: Any, file: Any, *, pages: int, max_rows: int, **_: Any) -> IdleExecutor:
        return IdleExecutor(
            pages=pages,
            page_positions=self.page_positions,
            max_rows=max_rows,
            vocabulary=plan.vocabulary,
        )


def stream(url: str, tokens: int) -> None:
    """Take one stream to its end."""
    body = {"prompt": "a", "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        assert response.read().endswith(b"data: [DONE]\n\n")


def take(url: str, clients: int, tokens: int) -> None:
    """Take so many streams at the same time."""
    threads = [threading.Thread(target=stream, args=(url, tokens)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=8, help="streams at the same time (8)")
    parser.add_argument("--tokens", type=int, default=500, help="of each stream (500)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (5)")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.url:
        take(options.url, options.clients, options.tokens)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = tiny.write_llama(Path(folder) / "tiny.gguf", context=options.tokens + 16)
        model = ModelSettings(id="tiny", path=path, default=True, streams=options.clients)
        with serve([model], backend=IdleBackend(), gpu=GPUSettings(mode="off")) as server:
            command = [sys.executable, __file__, "--url", server.url]
            command += ["--clients", str(options.clients), "--tokens", str(options.tokens)]
            figures = []
            for _ in range(options.rounds + 1):
                before = time.process_time()
                subprocess.run(command, check=True)
                spent = time.process_time() - before
                figures.append(spent / (options.clients * options.tokens) * 1e6)
    counted = figures[1:]
    print(
        f"{options.clients} clients: {statistics.median(counted):.1f} us of CPU for each token "
        f"(of {options.rounds} rounds, {min(counted):.1f} to {max(counted):.1f})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
