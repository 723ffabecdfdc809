"""Products on cooperative matrices: near the exact ones, near the host's logits, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from device.clocked import ClockedDevice
from device.parity import against_host, cases, opened, word
from device.report import Found, line
from device.speed import Speed
from device_matmul import FLOAT_LAYOUTS, FORMATS, Case
from gpu import Gpu
from tierd.backends.host import ThreadPool
from tierd.backends.resident.backend import ResidentBackend
from tierd.backends.resident.matmuls import form_of
from tierd.backends.vkapi import choose_matrix
from tierd.backends.vkapi.facts import without_matrices

# Of the spread of all results, how far one may be off at most and on average: factors have 11 bits.
MOST, MEAN = 5e-3, 5e-4
# As parity.BOUNDS, wider: more values fall on the other side of a rounding edge. 0.017, 0.017 and 0.062 were
# measured on 2026-11-30 on the software device of Mesa 26.2.6; that of Mesa 22.3 has no cooperative matrices,
# so that this is reported as not run there.
BOUNDS = {"f16": 0.03, "q8_0": 0.03, "tq4": 0.12}
# Outputs, columns and rows of a product, none of them whole tiles.
_PRODUCT = (300, 768, 70)


class Matrices:
    """A device that was opened with its cooperative matrices."""

    def __init__(self, device: ClockedDevice, pool: ThreadPool, folder: Path) -> None:
        """folder: for models."""
        self._device = device
        self._pool = pool
        self._folder = folder

    def run(self, speed: Speed, exact: Mapping[str, float], *, small: bool) -> Found:
        """Return what was compared and how fast prompts are fed, which `exact` tells of the exact forms."""
        line("cooperative matrices", str(choose_matrix(self._device.facts)))
        layouts = ["q4", "f16"] if small else list(FORMATS)
        products = [self._product(layout) for layout in layouts]
        host = self._host(small=small)
        passed = all(entry["result"] == "pass" for entry in (*products, *host))
        return {
            "result": word(passed),
            "shape": str(choose_matrix(self._device.facts)),
            "products": products,
            "host": host,
            **self._speed(speed, exact["tokens_per_s"]),
        }

    def _product(self, layout: str) -> Found:
        """Compute one product in the exact form for many rows and on matrices."""
        facts, gpu = self._device.facts, Gpu(self._device)
        case = Case.random(layout, *_PRODUCT, added=True)
        shape = {
            "terms": 0 if layout in FLOAT_LAYOUTS else 1,
            "blocks": case.weights.blocks,
            "rows": _PRODUCT[2],
        }
        tile = case.run(gpu, form_of(without_matrices(facts), layout, **shape))
        off = np.abs(case.run(gpu, form_of(facts, layout, **shape)) - tile) / tile.std()
        mean, most = float(off.mean()), float(off.max())
        passed = mean < MEAN and most < MOST  # false for a NaN
        line(f"products of {layout}", f"{word(passed)}: off by {mean:.6f} on average, {most:.5f} at most")
        return {"layout": layout, "result": word(passed), "mean": mean, "max": most}

    def _host(self, *, small: bool) -> list[Found]:
        """Compare tiny models, fed in steps of many rows, with the host's kernels."""
        backend = ResidentBackend(self._device, self._pool, images=None)
        found = []
        for case in cases(small=small):
            with opened(backend, case, self._folder) as (file, executor):
                found.append(against_host(case, file, executor, self._pool, BOUNDS))
        return found

    def _speed(self, speed: Speed, exact: float) -> Found:
        """Feed the large model's prompts."""
        other = speed.on(self._device)
        try:
            prefill = other.prefill()
            operations = other.prefill_operations()
        finally:
            other.close()
        ratio = prefill["tokens_per_s"] / exact
        line("prefill, of that without", f"{ratio:.2f} times")
        return {"prefill": {**prefill, "exact_tokens_per_s": exact, "ratio": ratio}, "operations": operations}
