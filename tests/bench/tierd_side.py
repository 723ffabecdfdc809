"""tierd as a side of a contest: a child process that answers its calls.

Usage: python tests/bench/tierd_side.py [--device]

With --device models are on the Vulkan device, be it a program on the processor, else on the host.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import child
import tierd
from seat import ON_DEVICE, ON_HOST, Box, Seat
from tierd.backends import library
from tierd.settings import GPUSettings


class Side:
    """A model in its seat, once it is loaded."""

    box: Box | None = None
    seat: Seat | None = None

    def __init__(self, gpu: GPUSettings) -> None:
        """gpu: where models are."""
        self._gpu = gpu

    def about(self) -> dict[str, Any]:
        """Return what it is, and of a device what that is."""
        said = {"version": tierd.__version__, "level": library.level()}
        return said | ({"device": device()} if self._gpu is ON_DEVICE else {})

    def load(self, path: str, threads: int, context: int, streams: int) -> dict[str, Any]:
        """Open a model anew; return the seconds that took."""
        if self.box is None:
            self.box = Box(threads=threads, gpu=self._gpu)
        if self.seat is not None:
            self.seat.close()
        started = time.perf_counter()
        self.seat = Seat(Path(path), self.box, context=context, streams=streams)
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


def device() -> dict[str, str]:
    """Return what the Vulkan device is that models are put on."""
    from tierd.backends.vkapi import Device

    with Device.open(allow_software=ON_DEVICE.allow_software) as opened:
        facts = opened.facts
    return {
        "name": facts.name,
        "type": facts.type,
        "driver": facts.driver,
        "vulkan": ".".join(map(str, facts.api)),
    }


if __name__ == "__main__":
    child.serve(Side(ON_DEVICE if "--device" in sys.argv[1:] else ON_HOST))
