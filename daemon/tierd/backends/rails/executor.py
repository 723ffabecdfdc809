"""A model on the host whose prompts' large matmuls run on a device."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence as Ordered

import numpy as np
import numpy.typing as npt

from tierd.backends.host import HostExecutor
from tierd.backends.protocol import Logits, LogitsResult
from tierd.backends.rails.cuts import Group, Segment, cut
from tierd.backends.rails.products import Products
from tierd.core import Batch
from tierd.errors import DeviceError, DeviceLostError

log = logging.getLogger(__name__)


class RailsExecutor:
    """See Executor. Steps of few rows run on the host alone, and all of them while nothing is laid.

    A step that the device fails at is run again on the host: K and V are written once more, and are the same.
    Where the host must not have it `collect` raises DeviceLostError, and the step may be fed again.

    strict: whether the host must not have what is for the device. handed_back: whether the host has computed
    the step collected last because the device failed at it.
    """

    name = "rails"
    depth = 1
    prefill_continues = True
    rewinds = True

    def __init__(self, host: HostExecutor, groups: tuple[Group, ...], rows: int) -> None:
        """groups: matmuls that may be on the device. rows: least of a step that goes there."""
        self.host = host
        self.groups = groups
        self.page_positions = host.page_positions
        self.page_bytes = host.page_bytes
        self.row_bytes = host.row_bytes
        self.pages = host.pages
        self.max_rows = host.max_rows
        self.logit_rows = host.logit_rows
        self.vocabulary = host.vocabulary
        self.layers: tuple[int, ...] = ()  # whose matmuls are on the device
        self.least = rows
        self.strict = False
        self.handed_back = False
        self._lock = threading.Lock()  # held while the device computes, and while what is laid changes
        self._products: Products | None = None
        self._failure = ""
        self._segments: tuple[Segment, ...] = ()
        self._submitted = Batch(())

    @property
    def all_layers(self) -> tuple[int, ...]:
        """Those that have matmuls which may be on a device."""
        return tuple(dict.fromkeys(group.matmuls[0].layer for group in self.groups))

    @property
    def failure(self) -> str:
        """Why the device that has matmuls of the model is not used any more; "" while it is, or has none."""
        products = self._products
        return self._failure or ("" if products is None else products.lost)

    def lay(self, products: Products, groups: Ordered[Group]) -> None:
        """Have these groups computed on the device from the next step on. What was there before is freed."""
        with self._lock:
            before, self._products = self._products, products
            self._segments, self._failure = cut(self.host.op_count, groups), ""
            self.layers = tuple(dict.fromkeys(group.matmuls[0].layer for group in groups))
            if before is not None:
                before.close()

    def lift(self) -> None:
        """Free what is on the device, once the step that uses it is over. Idempotent."""
        with self._lock:
            products, self._products, self.layers = self._products, None, ()
            if products is not None:
                products.close()

    def abandon(self, error: DeviceError) -> None:
        """Give up the device because of an error; a step that waits for it fails there. From any thread."""
        products = self._products
        if products is not None:
            products.abandon(error)

    def submit(self, batch: Batch) -> None:
        """See Executor. What does not fit is found by `collect`."""
        self._submitted = batch

    def collect(self) -> LogitsResult:
        """See Executor. Raises ExecutorError for what would lead the kernels astray."""
        return LogitsResult(self.run(self._submitted), hidden=self.host.hidden(self._submitted))

    def run(self, batch: Batch) -> Logits:
        """Submit a batch and collect it: its logits, shape (batch.logit_rows, vocabulary)."""
        self.handed_back = False
        if batch.rows < self.least:
            return self.host.run(batch)
        with self._lock:
            if self._products is not None:
                try:
                    return self._run_on(self._products, batch)
                except DeviceError as error:
                    self._failure = str(error)
                    products, self._products, self.layers = self._products, None, ()
                    products.close()
                    log.error("the device is not used any more: %s", error)
                    self.handed_back = not self.strict
            if self.strict and self._failure:
                raise DeviceLostError(self._failure)
        return self.host.run(batch)

    def copy_rows(self, source: int, target: int, positions: int) -> None:
        """See Executor."""
        self.host.copy_rows(source, target, positions)

    def read_rows(
        self, layer: int, pages: Ordered[int], start: int, stop: int, out: npt.NDArray[np.uint8]
    ) -> None:
        """See Executor."""
        self.host.read_rows(layer, pages, start, stop, out)

    def write_rows(
        self, layer: int, pages: Ordered[int], start: int, stop: int, rows: npt.NDArray[np.uint8]
    ) -> None:
        """See Executor."""
        self.host.write_rows(layer, pages, start, stop, rows)

    def close(self) -> None:
        """See Executor."""
        self.lift()
        self.host.close()

    def _run_on(self, products: Products, batch: Batch) -> Logits:
        host, rows = self.host, batch.rows
        host.load(batch)
        brought: list[npt.NDArray[np.uint32]] = []
        for segment in self._segments:
            group = segment.group
            if group is None:
                host.run_part(segment.first, segment.last, brought)
                break
            scales = products.scales(group, rows) if group.matmuls[0].parts else None
            host.run_part(
                segment.first, segment.last, brought, put=group.src, values=products.values(), scales=scales
            )
            brought = products.compute(group, rows)
        return host.logits(batch)
