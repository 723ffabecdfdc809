"""tierd as one side of throughput.py: a child process that answers its calls."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import child
import tierd
from seat import Seat
from tierd.backends import library


class Side:
    """A model in its seat, once it is loaded."""

    seat: Seat | None = None

    def about(self) -> dict[str, Any]:
        """Return what it is."""
        return {"version": tierd.__version__, "level": library.level()}

    def load(self, path: str, threads: int, context: int, streams: int) -> dict[str, Any]:
        """Open a model anew; return the seconds that took."""
        if self.seat is not None:
            self.seat.close()
        started = time.perf_counter()
        self.seat = Seat(Path(path), threads=threads, context=context, streams=streams)
        return {
            "seconds": time.perf_counter() - started,
            "vocabulary": self.seat.slot.executor.vocabulary,
            "page_pool": self.seat.page_pool_bytes,
        }

    def prefill(self, prompt: list[int]) -> float:
        """Return the seconds from a prompt to its first token."""
        assert self.seat is not None
        started = time.perf_counter()
        self.seat.submit(prompt, 1)
        self.seat.run_out()
        return time.perf_counter() - started

    def decode(self, prompts: list[list[int]], tokens: int) -> float:
        """Return the seconds that so many more tokens take each stream, once all of them generate."""
        assert self.seat is not None
        streams = self.seat.run_in(prompts, tokens)
        before = [stream.generated for stream in streams]
        started = time.perf_counter()
        for _ in range(tokens):
            self.seat.step()
        seconds = time.perf_counter() - started
        assert [stream.generated for stream in streams] == [count + tokens for count in before]
        self.seat.clear()
        return seconds

    def fill(self, prompts: list[list[int]], tokens: int) -> None:
        """Let each prompt go on for so many tokens."""
        assert self.seat is not None
        for prompt in prompts:
            self.seat.submit(prompt, tokens)
        self.seat.run_out()


if __name__ == "__main__":
    child.serve(Side())
