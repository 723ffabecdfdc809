"""A deterministic fake device: no weights, but K/V pages that are written and read back.

The logits and the hidden state of a row are a hash of its sequence's tokens as they lie in its pages. So a
page that is lost, shared by mistake, or written at the wrong place changes what comes out, as it would in a
model.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tierd.backends.moves import check_move
from tierd.backends.picking import check_draws, pick
from tierd.backends.protocol import Executor, Hidden, Logits, LogitsResult
from tierd.backends.selection import select
from tierd.core import Batch, Chunk, Draw
from tierd.errors import ExecutorError
from tierd.models.formats import KVCodec
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Plan, RowStore
from tierd.progress import Progress

_EMPTY = -1
_JUNK = -2  # of a failed step, or in the place of a token that was not drawn
_ROW_BYTES = 8

_Outcome = tuple[Logits, tuple[int | None, ...], Hidden] | BaseException


class NullExecutor:
    """Runs batches without a model. Raises ExecutorError for whatever would be a fault in a real one.

    page_bytes: what it says that a page takes.
    depth: with more than 1 it draws tokens, but only where that takes no chance and no adjusted logits.
    before_step: called with each batch before it runs, in `collect` or in a move of rows that goes behind it;
    may wait, and may raise to play a fault.
    prefill_continues, rewinds: see Executor; where one is False, what that rules out is a fault.
    width: of a hidden state.

    It has one layer, in which a row is its token.
    """

    row_bytes: tuple[int, ...] = (_ROW_BYTES,)

    def __init__(
        self,
        *,
        name: str = "null",
        pages: int,
        page_positions: int = 4,
        page_bytes: int = 0,
        max_rows: int = 64,
        vocabulary: int = 258,
        width: int = 8,
        depth: int = 1,
        before_step: Callable[[Batch], None] | None = None,
        prefill_continues: bool = True,
        rewinds: bool = True,
    ) -> None:
        self.name = name
        self.pages = pages
        self.page_positions = page_positions
        self.page_bytes = page_bytes
        self.max_rows = self.logit_rows = max_rows
        self.vocabulary = vocabulary
        self.width = width
        self.depth = depth
        self.prefill_continues = prefill_continues
        self.rewinds = rewinds
        self._before_step = before_step
        self._tokens = np.full((pages, page_positions), _EMPTY, dtype=np.int64)
        self._passed = [0] * pages  # positions of the sequence that begins in a page
        self._submitted: deque[Batch] = deque()  # and not collected
        self._results: deque[_Outcome] = deque()  # of those of them that have run
        self._previous = Batch(())  # submitted last
        self._drawn: tuple[int | None, ...] = ()  # for the rows of the step that ran last
        self._valid: deque[tuple[Logits, Hidden]] = deque()  # results that may still be looked at
        self._closed = False

    def submit(self, batch: Batch) -> None:
        """See Executor.submit."""
        if self._closed:
            raise ExecutorError("a step was submitted after the executor was closed")
        if len(self._submitted) >= self.depth:
            raise ExecutorError(f"a step was submitted while {self.depth} are in flight")
        self._check(batch)
        for chunk in batch.chunks:
            for first in chunk.pages[:1]:
                self._passed[first] = chunk.start + len(chunk.tokens)
        self._submitted.append(batch)
        self._previous = batch

    def collect(self) -> LogitsResult:
        """Run the oldest step: write its tokens into their pages, hash each row's history from there."""
        if not self._results:
            self._run_next()
        self._submitted.popleft()
        result = self._results.popleft()
        if len(self._valid) == self.depth:
            for rows in self._valid.popleft():
                rows.fill(np.nan)
        if isinstance(result, BaseException):
            raise result
        logits, drawn, hidden = result
        self._valid.append((logits, hidden))
        return LogitsResult(logits, drawn, hidden)

    def run(self, batch: Batch) -> Logits:
        """Submit a batch and collect it: its logits, shape (batch.logit_rows, vocabulary)."""
        self.submit(batch)
        self.collect()
        return self._valid[-1][0]

    def copy_rows(self, source: int, target: int, positions: int) -> None:
        """Copy the tokens that stand for the rows. Rows that were never fed are a fault."""
        in_flight = tuple(self._submitted)
        if in_flight and self.depth == 1:
            raise ExecutorError("rows were copied while a step is in flight")
        self._check_page(source)
        self._check_page(target)
        for chunk in (chunk for batch in in_flight for chunk in batch.chunks):
            if target in chunk.pages or self._writes(chunk, source, positions):
                raise ExecutorError(
                    f"page {source} was copied to page {target} while a step works on one of them"
                )
        rows = self._tokens[source, :positions]
        if source == target or len(rows) != positions or (rows < 0).any():
            raise ExecutorError(f"{positions} rows cannot be copied from page {source} to page {target}")
        self._tokens[target, :positions] = rows
        self._passed[target] = positions

    def read_rows(
        self, layer: int, pages: Sequence[int], start: int, stop: int, out: npt.NDArray[np.uint8]
    ) -> None:
        """See Executor.read_rows. Rows that were never fed are a fault."""
        self._settle(layer, pages, start, stop, out)
        rows = self._tokens[list(pages)].reshape(-1)[start:stop]
        if (rows < 0).any():
            raise ExecutorError(f"position {start + int(np.argmax(rows < 0))} was never fed")
        out[...] = rows.view(np.uint8).reshape(out.shape)

    def write_rows(
        self, layer: int, pages: Sequence[int], start: int, stop: int, rows: npt.NDArray[np.uint8]
    ) -> None:
        """See Executor.write_rows. Bytes that are no token are a fault."""
        self._settle(layer, pages, start, stop, rows)
        tokens = rows.view(np.int64).reshape(-1)
        if ((tokens < 0) | (tokens >= self.vocabulary)).any():
            raise ExecutorError(f"rows {start} to {stop - 1} are not those of {self.vocabulary} tokens")
        self._store(Chunk(tokens.tolist(), start, pages))
        for first in pages[:1]:
            self._passed[first] = stop

    def close(self) -> None:
        """Refuse all further steps."""
        if self._submitted:
            raise ExecutorError("closed while a step is in flight")
        self._closed = True

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def _check(self, batch: Batch) -> None:
        if not 0 < batch.rows <= self.max_rows:
            raise ExecutorError(f"a batch of {batch.rows} rows; 1 to {self.max_rows} are possible")
        check_draws(batch, self.vocabulary)
        select(batch)
        for chunk in batch.chunks:
            end = chunk.start + len(chunk.tokens)
            if chunk.start < 0 or end > len(chunk.pages) * self.page_positions:
                raise ExecutorError(
                    f"positions {chunk.start} to {end - 1} are not covered by {len(chunk.pages)} pages"
                )
            for page in chunk.pages:
                self._check_page(page)
            self._check_tokens(chunk)
            self._check_order(chunk)

    def _check_order(self, chunk: Chunk) -> None:
        if chunk.start and len(chunk.tokens) > 1 and not self.prefill_continues:
            raise ExecutorError(f"position {chunk.start} continues a prompt, which this device cannot do")
        if 0 < chunk.start < self._passed[chunk.pages[0]] and not self.rewinds:
            raise ExecutorError(f"position {chunk.start} was passed already, and this device cannot rewind")

    def _check_page(self, page: int) -> None:
        if not 0 <= page < self.pages:
            raise ExecutorError(f"page {page} does not exist; there are {self.pages}")

    def _check_tokens(self, chunk: Chunk) -> None:
        lowest = -len(self._previous.draws) if self.depth > 1 and len(chunk.tokens) == 1 else 0
        for token in chunk.tokens:
            if not lowest <= token < self.vocabulary:
                raise ExecutorError(f"token {token} does not exist; there are {self.vocabulary}")

    def _settle(
        self, layer: int, pages: Sequence[int], start: int, stop: int, rows: npt.NDArray[np.uint8]
    ) -> None:
        """Run all that was submitted: rows move behind it."""
        if self._closed:
            raise ExecutorError("rows were moved after the executor was closed")
        check_move(self, layer, pages, start, stop, rows)
        while len(self._results) < len(self._submitted):
            self._run_next()

    def _run_next(self) -> None:
        """Run the oldest step that has not run. With what it fails is for `collect` to tell."""
        batch = self._submitted[len(self._results)]
        drawn, self._drawn = self._drawn, (None,) * batch.logit_rows
        try:
            if self._before_step is not None:
                self._before_step(batch)
            self._feed(batch, drawn)
            logits = self._rows(batch, [chunk.logit_rows for chunk in batch.chunks], self.vocabulary)
            hidden = self._rows(batch, [chunk.hidden_rows for chunk in batch.chunks], self.width)
        except BaseException as error:
            for chunk in batch.chunks:
                self._store(replace(chunk, tokens=(_JUNK,) * len(chunk.tokens)))
            self._results.append(error)
            return
        if self.depth > 1:
            self._drawn = tuple(map(_draw, batch.draws, logits))
        self._results.append((logits, self._drawn, hidden))

    def _feed(self, batch: Batch, drawn: tuple[int | None, ...]) -> None:
        """Feed a batch whose tokens below 0 stand for what was drawn."""
        for chunk in batch.chunks:
            tokens = [token if token >= 0 else drawn[-1 - token] for token in chunk.tokens]
            self._store(replace(chunk, tokens=[_JUNK if token is None else token for token in tokens]))

    def _rows(self, batch: Batch, wanted: Sequence[Sequence[int]], width: int) -> npt.NDArray[np.float32]:
        """Return what comes of rows: of each chunk, those at the offsets that are wanted."""
        rows = [
            self._row(chunk, offset, width)
            for chunk, offsets in zip(batch.chunks, wanted, strict=True)
            for offset in offsets
        ]
        return np.array(rows, dtype=np.float32).reshape(len(rows), width)

    def _writes(self, chunk: Chunk, page: int, positions: int) -> bool:
        """Whether a chunk writes any of a page's first positions."""
        written = range(chunk.start, chunk.start + len(chunk.tokens))
        return any(
            chunk.pages[position // self.page_positions] == page
            and position % self.page_positions < positions
            for position in written
        )

    def _store(self, chunk: Chunk) -> None:
        for position, token in enumerate(chunk.tokens, chunk.start):
            page = chunk.pages[position // self.page_positions]
            self._tokens[page, position % self.page_positions] = token

    def _row(self, chunk: Chunk, offset: int, width: int) -> npt.NDArray[np.float32]:
        length = chunk.start + offset + 1
        history = self._tokens[list(chunk.pages)].reshape(-1)[:length]
        if (history == _EMPTY).any():
            raise ExecutorError(f"position {int(np.argmax(history == _EMPTY))} was never fed")
        digest = hashlib.blake2b(history.tobytes(), digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
        return generator.random(width, dtype=np.float32)


def _draw(draw: Draw, logits: Logits) -> int | None:
    """Pick the most likely token that is allowed, or none where another may be wanted."""
    return pick(logits, draw) if draw.temperature == 0 and not draw.adjustments.size else None


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
        self.name = self.numerics = name
        self.page_positions = page_positions
        self._before_step = before_step

    def page_bytes(self, plan: Plan, codec: KVCodec) -> int:
        """Return the bytes of one page of every store's rows, K and V."""
        stores = (store for store in plan.stores if isinstance(store, RowStore))
        rows = sum(2 * store.heads * codec.row_bytes(store.head_size) for store in stores)
        return rows * self.page_positions

    def weight_bytes(self, plan: Plan, file: GGUFFile) -> int:
        """Return 0: there are no weights."""
        return 0

    def step_bytes(self, plan: Plan, max_rows: int, logit_rows: int) -> int:
        """Return 0: what there is goes with its step."""
        return 0

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
        """Return an executor that knows of the plan two widths only: of its logits and its hidden states."""
        return NullExecutor(
            name=self.name,
            pages=pages,
            page_positions=self.page_positions,
            page_bytes=self.page_bytes(plan, codec),
            max_rows=max_rows,
            vocabulary=plan.vocabulary,
            width=plan.buffers[plan.hidden],
            before_step=self._before_step,
        )
