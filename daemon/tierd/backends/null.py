"""A deterministic fake device: no weights, but K/V pages that are written and read back.

The logits of a row are a hash of its sequence's tokens as they lie in its pages. So a page that is
lost, shared by mistake, or written at the wrong place changes what comes out, as it would in a model.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tierd.backends.protocol import Executor, Logits
from tierd.core import Batch, Chunk
from tierd.errors import ExecutorError
from tierd.models.formats import KVCodec
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Plan, RowStore

_EMPTY = -1


class NullExecutor:
    """Runs batches without a model. Raises ExecutorError for whatever would be a fault in a real one.

    before_step: called in `run` with the batch; may wait, and may raise to play a fault.
    """

    def __init__(
        self,
        *,
        name: str = "null",
        pages: int,
        page_positions: int = 4,
        max_rows: int = 64,
        vocabulary: int = 258,
        before_step: Callable[[Batch], None] | None = None,
    ) -> None:
        self.name = name
        self.pages = pages
        self.page_positions = page_positions
        self.max_rows = max_rows
        self.vocabulary = vocabulary
        self._before_step = before_step
        self._tokens = np.full((pages, page_positions), _EMPTY, dtype=np.int64)
        self._logits = np.empty((0, vocabulary), dtype=np.float32)
        self._busy = threading.Lock()
        self._closed = False

    def run(self, batch: Batch) -> Logits:
        """Write the batch's tokens into their pages, then hash each wanted row's history from there."""
        if not self._busy.acquire(blocking=False):
            raise ExecutorError("a step was started while another one runs")
        try:
            self._logits.fill(np.nan)  # the last result is no longer valid
            if self._before_step is not None:
                self._before_step(batch)
            self._check(batch)
            for chunk in batch.chunks:
                self._store(chunk)
            rows = [self._row(chunk, offset) for chunk in batch.chunks for offset in chunk.logit_rows]
            self._logits = np.array(rows, dtype=np.float32).reshape(len(rows), self.vocabulary)
            return self._logits
        finally:
            self._busy.release()

    def copy_rows(self, source: int, target: int, positions: int) -> None:
        """Copy the tokens that stand for the rows. Rows that were never fed are a fault."""
        if self._busy.locked():
            raise ExecutorError("rows were copied while a step runs")
        self._check_page(source)
        self._check_page(target)
        rows = self._tokens[source, :positions]
        if source == target or len(rows) != positions or (rows == _EMPTY).any():
            raise ExecutorError(f"{positions} rows cannot be copied from page {source} to page {target}")
        self._tokens[target, :positions] = rows

    def close(self) -> None:
        """Refuse all further steps."""
        if self._busy.locked():
            raise ExecutorError("closed while a step runs")
        self._closed = True

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def _check(self, batch: Batch) -> None:
        if self._closed:
            raise ExecutorError("a step was started after the executor was closed")
        if not 0 < batch.rows <= self.max_rows:
            raise ExecutorError(f"a batch of {batch.rows} rows; 1 to {self.max_rows} are possible")
        for chunk in batch.chunks:
            end = chunk.start + len(chunk.tokens)
            if chunk.start < 0 or end > len(chunk.pages) * self.page_positions:
                raise ExecutorError(
                    f"positions {chunk.start} to {end - 1} are not covered by {len(chunk.pages)} pages"
                )
            for page in chunk.pages:
                self._check_page(page)
            for token in chunk.tokens:
                if not 0 <= token < self.vocabulary:
                    raise ExecutorError(f"token {token} does not exist; there are {self.vocabulary}")
            if any(not 0 <= offset < len(chunk.tokens) for offset in chunk.logit_rows):
                raise ExecutorError(f"logit rows {chunk.logit_rows} of a chunk of {len(chunk.tokens)} tokens")

    def _check_page(self, page: int) -> None:
        if not 0 <= page < self.pages:
            raise ExecutorError(f"page {page} does not exist; there are {self.pages}")

    def _store(self, chunk: Chunk) -> None:
        for position, token in enumerate(chunk.tokens, chunk.start):
            page = chunk.pages[position // self.page_positions]
            self._tokens[page, position % self.page_positions] = token

    def _row(self, chunk: Chunk, offset: int) -> npt.NDArray[np.float32]:
        length = chunk.start + offset + 1
        history = self._tokens[list(chunk.pages)].reshape(-1)[:length]
        if (history == _EMPTY).any():
            raise ExecutorError(f"position {int(np.argmax(history == _EMPTY))} was never fed")
        digest = hashlib.blake2b(history.tobytes(), digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
        return generator.random(self.vocabulary, dtype=np.float32)


class NullBackend:
    """Puts models on the null device. A page costs as much as its rows would in the codec.

    before_step: given to every executor.
    """

    def __init__(
        self,
        *,
        name: str = "null",
        page_positions: int = 4,
        before_step: Callable[[Batch], None] | None = None,
    ) -> None:
        self.name = name
        self.page_positions = page_positions
        self._before_step = before_step

    def page_bytes(self, plan: Plan, codec: KVCodec) -> int:
        """Return the bytes of one page of every store's rows, K and V."""
        stores = (store for store in plan.stores if isinstance(store, RowStore))
        rows = sum(2 * store.heads * codec.row_bytes(store.head_size) for store in stores)
        return rows * self.page_positions

    def working_bytes(self, plan: Plan, file: GGUFFile, max_rows: int) -> int:
        """Return 0: there are no weights."""
        return 0

    def compile(self, plan: Plan, file: GGUFFile, *, codec: KVCodec, pages: int, max_rows: int) -> Executor:
        """Return an executor that knows of the plan its vocabulary only."""
        return NullExecutor(
            name=self.name,
            pages=pages,
            page_positions=self.page_positions,
            max_rows=max_rows,
            vocabulary=plan.vocabulary,
            before_step=self._before_step,
        )
