"""What the engine may ask of a backend.

A `Backend` is a device. It compiles a plan into an `Executor`. An executor is owned by the engine
thread; `run` is the one call made from its runner thread, one at a time.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from tierd.core import Batch
from tierd.models.formats import KVCodec
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Plan

Logits = npt.NDArray[np.float32]


class Executor(Protocol):
    """A plan compiled for one device, with its weights and its K/V pages.

    name: its device. Executors of one name share a runner: their steps take turns.
    page_positions: positions held by one page of K/V.
    pages: number of pages; ids run from 0 to pages - 1.
    max_rows: most rows one batch may hold.
    vocabulary: length of one row of logits.
    """

    name: str
    page_positions: int
    pages: int
    max_rows: int
    vocabulary: int

    def run(self, batch: Batch) -> Logits:
        """Feed the batch's rows and return logits, shape (batch.logit_rows, vocabulary).

        Writes the rows' K/V into their pages. The result is valid until the next `run`. Blocks, with
        the GIL released. Raises ExecutorError; the K/V of the batch's rows is then undefined.
        """

    def copy_rows(self, source: int, target: int, positions: int) -> None:
        """Copy the K/V of a page's first positions, every layer, into another page.

        Called from the engine thread while no `run` is in progress; takes no longer than a page's bytes
        need to be copied.
        """

    def close(self) -> None:
        """Free weights and pages. Idempotent; nothing may be called after it."""


class Backend(Protocol):
    """A device and how to put a model on it.

    name: of the device; its executors carry it.
    page_positions: positions held by one page of K/V.
    """

    name: str
    page_positions: int

    def page_bytes(self, plan: Plan, codec: KVCodec) -> int:
        """Return the bytes of one page, all layers. UnsupportedModelError when the codec does not fit."""

    def working_bytes(self, plan: Plan, file: GGUFFile, max_rows: int) -> int:
        """Return the bytes that a compiled plan takes, K/V aside: its weights and a step's buffers."""

    def compile(self, plan: Plan, file: GGUFFile, *, codec: KVCodec, pages: int, max_rows: int) -> Executor:
        """Return an executor for the plan. Called from any thread; may take seconds. Raises ModelError.

        Copies what it needs of the file, which may be closed afterwards.
        """
