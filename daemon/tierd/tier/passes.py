"""The count of what was meant for the GPU and handed to the CPU instead: by reason, said aloud."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from prometheus_client import Counter

from tierd.core import PassReason

log = logging.getLogger(__name__)


class Passes:
    """The passes of one model that is wanted on the device. Only the engine thread counts.

    status: passes by reason since the last reset; a reason without any is not there. It is replaced, never
    changed, so it may be published as it is.
    """

    def __init__(self, model: str, counter: Counter) -> None:
        """counter: by model and reason, never reset; has all of the model's reasons from now on, at 0."""
        self.status: Mapping[PassReason, int] = {}
        self._model = model
        self._counters = {reason: counter.labels(model, reason) for reason in PassReason}

    def count(self, reason: PassReason, passes: int = 1) -> None:
        """Count passes, and log the first of its reason since the last reset."""
        if reason not in self.status:
            log.warning("model=%s passes to the CPU: %s", self._model, reason.words)
        self.status = {**self.status, reason: self.status.get(reason, 0) + passes}
        self._counters[reason].inc(passes)

    def reset(self) -> None:
        """Begin the status anew, as when the model is armed; the counter goes on."""
        self.status = {}
