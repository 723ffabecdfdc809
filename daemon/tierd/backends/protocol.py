"""What the engine may ask of a backend.

A `Backend` is a device. It compiles a plan into an `Executor`. An executor is owned by the engine
thread, which submits steps; `collect` is the one call made from its runner thread.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tierd.backends.picking import measure
from tierd.core import Batch, TokenLogprobs
from tierd.models.formats import KVCodec
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Plan
from tierd.progress import Progress

# Most bytes of one call of `read_rows` or `write_rows`.
MOVE_BYTES = 8 << 20
# Rows of prompts whose logits a step brings at most, beside one row of each stream.
SCORED_ROWS = 32

Logits = npt.NDArray[np.float32]
Hidden = npt.NDArray[np.float32]


class Result(Protocol):
    """What a step has brought, by rows of logits; valid until `depth` more steps are collected.

    hidden: the hidden states that were wanted, in order, shape (rows, width).
    rows_read: how many rows of logits came back from a device that draws by itself, because it could not draw
    from them or not tell log-probabilities of them. hidden_read: how many hidden states came back from one.
    """

    hidden: Hidden
    rows_read: int
    hidden_read: int

    def drawn(self, row: int) -> int | None:
        """Return the token that the executor has drawn for a row; None where its logits must be looked at."""

    def logits(self, row: int) -> Logits:
        """Return the logits, shape (vocabulary,), of a row that was not drawn, as the model has them."""

    def logprobs(self, row: int, token: int, top: int) -> TokenLogprobs:
        """Return the log-probability of a row's token and those of the `top` most likely ones.

        By the model's own logits. Of a row that was drawn: that token, and as many as its Draw has asked for.
        """


NO_HIDDEN_STATES: Hidden = np.empty((0, 0), np.float32)


class LogitsResult:
    """A result whose logits are all there, shape (rows, vocabulary). drawn: of each row; () when none are."""

    rows_read = hidden_read = 0

    def __init__(
        self, logits: Logits, drawn: Ordered[int | None] = (), hidden: Hidden = NO_HIDDEN_STATES
    ) -> None:
        self.hidden = hidden
        self._logits = logits
        self._drawn = drawn

    def drawn(self, row: int) -> int | None:
        """See Result."""
        return self._drawn[row] if self._drawn else None

    def logits(self, row: int) -> Logits:
        """See Result."""
        logits: Logits = self._logits[row]
        return logits

    def logprobs(self, row: int, token: int, top: int) -> TokenLogprobs:
        """See Result. Of any token, and as many as wanted."""
        return measure(self.logits(row), token, top)


class Executor(Protocol):
    """A plan compiled for one device, with its weights and its K/V pages.

    name: its device. Executors of one name share a runner: their steps take turns.
    page_positions: positions held by one page of K/V.
    page_bytes: of one page, all layers.
    pages: number of pages; ids run from 0 to pages - 1.
    max_rows: most rows one batch may hold. logit_rows: most of these whose logits may be wanted.
    vocabulary: length of one row of logits.
    row_bytes: of one position in each of the plan's row stores, in their order: K of all heads, then V of all
    heads, each in the codec's bytes. They are the same whatever the executor.
    depth: how many steps may be submitted and not collected. With more than 1 it draws tokens, and a step may
    refer to those of the step before.
    prefill_continues: whether a prompt may be fed in chunks. rewinds: whether rows may be fed at positions
    that the sequence has passed already.
    """

    name: str
    page_positions: int
    page_bytes: int
    pages: int
    max_rows: int
    logit_rows: int
    vocabulary: int
    row_bytes: tuple[int, ...]
    depth: int
    prefill_continues: bool
    rewinds: bool

    def submit(self, batch: Batch) -> None:
        """Take a batch over, to be fed when those before it are done. Never blocks.

        Raises ExecutorError for a batch that does not fit; it is then as if it had not been submitted.
        """

    def collect(self) -> Result:
        """Wait for the oldest step that was submitted, with the GIL released, and return its result.

        Its rows' K/V is in their pages then. Raises ExecutorError: then that K/V is undefined, and so is what
        the steps behind it bring for the streams whose rows these were, but for no others.
        """

    def copy_rows(self, source: int, target: int, positions: int) -> None:
        """Copy the K/V of a page's first positions, every layer, into another page, before the next step.

        Called from the engine thread while no step in flight and no `write_rows` writes these rows of the
        source or knows the target, and no step at all is in flight where `depth` is 1; takes no longer than a
        page's bytes need to be copied.
        """

    def read_rows(
        self, layer: int, pages: Ordered[int], start: int, stop: int, out: npt.NDArray[np.uint8]
    ) -> None:
        """Copy K and V of positions start to stop - 1 of a layer out of a sequence's pages.

        As they are once the steps that were submitted, and the copies that were asked for, are done.

        layer: an index into `row_bytes`. out: dense, shape (stop - start, row_bytes[layer]), at most
        MOVE_BYTES. Called from the runner thread, may wait, with the GIL released. Raises ExecutorError and
        DeviceError.
        """

    def write_rows(
        self, layer: int, pages: Ordered[int], start: int, stop: int, rows: npt.NDArray[np.uint8]
    ) -> None:
        """Copy K and V of positions start to stop - 1 of a layer into a sequence's pages; see `read_rows`.

        Rows of other positions stay as they are. Steps that are submitted afterwards see them.
        """

    def close(self) -> None:
        """Free weights and pages. Idempotent; nothing may be called after it."""


class Backend(Protocol):
    """A device and how to put a model on it.

    name: of the device; its executors carry it.
    page_positions: positions held by one page of K/V.
    numerics: names all that the bits of what it computes depend on, besides the plan.
    """

    name: str
    page_positions: int
    numerics: str

    def page_bytes(self, plan: Plan, codec: KVCodec) -> int:
        """Return the bytes of one page, all layers. UnsupportedModelError when the codec does not fit."""

    def weight_bytes(self, plan: Plan, file: GGUFFile) -> int:
        """Return the bytes that a compiled plan's weights take."""

    def step_bytes(self, plan: Plan, max_rows: int, logit_rows: int) -> int:
        """Return the bytes of a step's buffers. logit_rows: of its rows, those whose logits are read."""

    def compile(
        self,
        plan: Plan,
        file: GGUFFile,
        *,
        codec: KVCodec,
        pages: int,
        max_rows: int,
        progress: Progress | None = None,
    ) -> Executor:
        """Return an executor for the plan. Called from any thread; may take seconds. Raises ModelError.

        progress: called as weights are put where they are needed.
        Copies what it needs of the file, which may be closed afterwards.
        """
