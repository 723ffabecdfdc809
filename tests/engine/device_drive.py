"""What tests of an engine with a fake device look at and wait for."""

from __future__ import annotations

import time

from engine.drive import greedy
from engine.harness import Harness
from engine.null_slot import request
from tierd.core import FinishedEvent, PassReason

MODEL = "null"


def text(prompt: bytes, tokens: int) -> str:
    """Return what a model says that has seen all of a prompt."""
    return bytes(t for t in greedy(prompt, tokens)[len(prompt) :] if t < 256).decode("utf-8", "replace")


def check(harness: Harness, id: str, prompt: bytes, tokens: int = 8) -> None:
    """Serve a request to its end, which must be right."""
    harness.engine.submit(request(id, prompt, tokens))
    ended(harness, id, prompt, tokens)


def ended(harness: Harness, id: str, prompt: bytes, tokens: int = 8) -> FinishedEvent:
    """Wait for the end of a request, which must be right."""
    end = harness.mail.terminal(id)
    assert isinstance(end, FinishedEvent), end
    assert end.usage.completion_tokens == tokens
    assert harness.mail.text(id) == text(prompt, tokens)
    return end


def passes(harness: Harness) -> dict[str, int]:
    """Return the passes by reason, those that there are."""
    found = {
        reason.value: harness.metrics.registry.get_sample_value(
            "tierd_gpu_cpu_passes_total", {"model": MODEL, "reason": reason}
        )
        for reason in PassReason
    }
    return {reason: int(count) for reason, count in found.items() if count}


def fed(harness: Harness, id: str, positions: int, patience: float) -> bool:
    """Wait until so many positions of a stream are fed, at most so many seconds; return whether they are."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        for session in harness.engine.snapshot.models[MODEL].sessions:
            if session.request == id and session.positions >= positions:
                return True
        time.sleep(0.001)
    return False
