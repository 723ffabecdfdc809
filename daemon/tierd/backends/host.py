"""The host backend: compiles a plan for the C kernels and runs a whole step in one foreign call.

Compiling lowers the plan to the kernels' ops (`lowering`) and packs weights into the kernels' layouts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tierd.backends import library
from tierd.backends.cores import usable_cores
from tierd.backends.lowering import Lowering, row_stores
from tierd.backends.moves import check_move, row_bytes
from tierd.backends.profile import StepProfile, name_ops
from tierd.backends.protocol import Hidden, Logits, LogitsResult
from tierd.backends.selection import select
from tierd.backends.shaping import floats, shapes
from tierd.core import Batch
from tierd.errors import ExecutorError, ModelError
from tierd.models.formats import KVCodec
from tierd.models.gguf import GGUFFile
from tierd.models.plan import Embed, MatMul, Plan, RowStore
from tierd.progress import Progress

PAGE_POSITIONS = 64
# Of one value in a step: four as a float, one quantised, and its share of the block's scale and sums.
_BUFFER_BYTES = 6
_FLOAT_BYTES = 4


class ThreadPool:
    """The threads that run host steps, shared by all executors, one step at a time.

    lock: held by whoever runs on the threads.
    """

    def __init__(self, threads: int) -> None:
        """Start `threads` threads, the caller of a step among them; 0 takes one per usable core."""
        _, self._lib = library.load()
        self.threads = threads or usable_cores()
        self.lock = threading.Lock()
        self.handle = self._lib.hk_pool_create(self.threads)
        if not self.handle:
            raise ModelError(f"cannot start {self.threads} threads; lower engine.threads")

    def close(self) -> None:
        """Stop the threads. Idempotent; no executor may run after it."""
        if self.handle:
            self._lib.hk_pool_destroy(self.handle)
            self.handle = None


def page_bytes(plan: Plan, codec: KVCodec) -> int:
    """Return the bytes of one K/V page, PAGE_POSITIONS positions of every layer.

    Raises UnsupportedModelError when a head does not fit the codec.
    """
    ffi, lib = library.load()
    stores = row_stores(plan, codec)
    spec = ffi.new("hk_store[]", [(store.heads, store.head_size) for store in stores])
    return int(lib.hk_page_bytes(spec, len(stores), codec.id))


def weight_bytes(plan: Plan, file: GGUFFile) -> int:
    """Return the bytes of a plan's packed weights."""
    _, lib = library.load()
    total = 0
    for name in {op.weight for op in plan.ops if isinstance(op, Embed | MatMul)}:
        tensor = file.tensors[name]
        total += int(lib.hk_packed_bytes(lib.hk_layout_of(tensor.format.id), *tensor.shape))
    return total


def step_bytes(plan: Plan, max_rows: int, logit_rows: int) -> int:
    """Return the bytes of the buffers of a step of so many rows, of which so many have their logits read."""
    _, lib = library.load()
    block = int(lib.HK_BLOCK)
    blocks = sum(-(-width // block) for name, width in plan.buffers.items() if name != plan.logits)
    return max_rows * blocks * block * _BUFFER_BYTES + logit_rows * plan.vocabulary * _FLOAT_BYTES


def compile_plan(
    plan: Plan,
    file: GGUFFile,
    *,
    codec: KVCodec,
    pages: int,
    max_rows: int,
    pool: ThreadPool,
    progress: Progress | None = None,
) -> HostExecutor:
    """Compile a checked plan and pack its weights.

    pages: K/V pages to reserve, touched lazily. max_rows: most rows of one step. progress: of the packing.
    Raises UnsupportedModelError for what the kernels lack and ModelError when memory runs out.
    """
    lowering = Lowering(plan, file, codec)
    return HostExecutor(
        plan, file, lowering, codec=codec, pages=pages, max_rows=max_rows, pool=pool, progress=progress
    )


class HostBackend:
    """The processor as a backend. pool: threads that its executors share."""

    name = "cpu"
    page_positions = PAGE_POSITIONS

    def __init__(self, threads: int) -> None:
        """Start the threads; 0 takes one per usable core. Raises ModelError when they cannot start."""
        self.pool = ThreadPool(threads)
        self.numerics = f"{self.name} {library.level()}"

    def page_bytes(self, plan: Plan, codec: KVCodec) -> int:
        """See Backend."""
        return page_bytes(plan, codec)

    def weight_bytes(self, plan: Plan, file: GGUFFile) -> int:
        """See Backend."""
        return weight_bytes(plan, file)

    def step_bytes(self, plan: Plan, max_rows: int, logit_rows: int) -> int:
        """See Backend."""
        return step_bytes(plan, max_rows, logit_rows)

    def compile(
        self,
        plan: Plan,
        file: GGUFFile,
        *,
        codec: KVCodec,
        pages: int,
        max_rows: int,
        progress: Progress | None = None,
    ) -> HostExecutor:
        """See Backend."""
        return compile_plan(
            plan,
            file,
            codec=codec,
            pages=pages,
            max_rows=max_rows,
            pool=self.pool,
            progress=progress,
        )

    def close(self) -> None:
        """Stop the threads. Idempotent; every executor has been closed."""
        self.pool.close()


class HostExecutor:
    """A plan compiled for the host kernels, with its packed weights and its K/V pages."""

    name = "cpu"
    page_positions = PAGE_POSITIONS
    depth = 1
    prefill_continues = True
    rewinds = True

    def __init__(
        self,
        plan: Plan,
        file: GGUFFile,
        lowering: Lowering,
        *,
        codec: KVCodec,
        pages: int,
        max_rows: int,
        pool: ThreadPool,
        progress: Progress | None,
    ) -> None:
        """Use `compile_plan`."""
        self.pages = pages
        self.page_bytes = page_bytes(plan, codec)
        self.row_bytes = row_bytes(plan, codec)
        self.max_rows = self.logit_rows = max_rows
        self._pool = pool
        self.vocabulary = plan.vocabulary
        self._ffi, self._lib = library.load()
        self._vectors = [floats(file, name) for name in lowering.vectors]
        self._weights = _pack_all(file, list(lowering.weights), pool, progress)
        self._matrices = [
            (self._lib.hk_layout_of(file.tensors[name].format.id), *file.tensors[name].shape)
            for name in lowering.weights
        ]
        self._shapes = shapes(plan, file, codec)
        self._token_ids = lowering.token_ids
        self._ops = name_ops(lowering)
        self._handle = self._create(file, lowering, codec, pool)
        if not self._handle:
            raise ModelError(
                f"{file.path}: no memory for {pages} K/V pages and the buffers of a step of {max_rows} rows; "
                "lower kv.memory_mb, context or streams"
            )
        self._tokens = np.zeros(max_rows, np.int32)
        self._positions = np.zeros(max_rows, np.int32)
        self._sequences = np.zeros(max_rows, np.int32)
        self._selection = np.zeros(max_rows, np.int32)
        self._page_tables = np.zeros((0, 0), np.int32)
        self._logits: Logits = np.empty((0, plan.vocabulary), np.float32)
        self._width = lowering.hidden
        self._hidden = self._hidden_states(0)
        self._step = self._ffi.new("hk_step *")
        self._submitted = Batch(())

    def _create(self, file: GGUFFile, lowering: Lowering, codec: KVCodec, pool: ThreadPool) -> Any:
        new = self._ffi.new
        frequencies = [new("double[]", list(rope.frequencies)) for rope in lowering.ropes]
        arrays = {
            "ops": new("hk_op[]", lowering.ops),
            "buffers": new(
                "hk_buffer[]",
                list(zip(map(lowering.kind_of, lowering.buffers), lowering.widths, strict=True)),
            ),
            "weights": new(
                "hk_weight[]",
                [
                    (*matrix, library.pointer(packed, "void *"))
                    for matrix, packed in zip(self._matrices, self._weights, strict=True)
                ],
            ),
            "vectors": new("float *[]", [library.pointer(vector, "float *") for vector in self._vectors]),
            "ropes": new(
                "hk_rope[]",
                [
                    (len(rope.frequencies), rope.interleaved, rope.magnitude, array)
                    for rope, array in zip(lowering.ropes, frequencies, strict=True)
                ],
            ),
            "stores": new("hk_store[]", [self._store(store) for store in lowering.stores]),
        }
        spec = new("hk_model_spec *")
        for name, array in arrays.items():
            setattr(spec, name, array)
            setattr(spec, f"{name.removesuffix('s')}_count", len(array))
        spec.codec, spec.pages, spec.max_rows = codec.id, self.pages, self.max_rows
        return self._lib.hk_model_create(spec, pool.handle)

    def _store(self, store: RowStore) -> tuple[Any, ...]:
        """Return the fields of a store's `hk_store`."""
        shape = self._shapes.get(store.layer)
        if shape is None:
            return store.heads, store.head_size
        vectors = (library.pointer(vector, "float *") for vector in (shape.key_scale, shape.key_feedback))
        return store.heads, store.head_size, *vectors

    def submit(self, batch: Batch) -> None:
        """See `Executor.submit`. What does not fit is found by `collect`."""
        self._submitted = batch

    def collect(self) -> LogitsResult:
        """See `Executor.collect`. Raises ExecutorError for what would lead the kernels astray."""
        return LogitsResult(self.run(self._submitted), hidden=self.hidden(self._submitted))

    def run(self, batch: Batch) -> Logits:
        """Submit a batch and collect it: its logits, shape (batch.logit_rows, vocabulary)."""
        self.load(batch)
        with self._pool.lock:
            self._lib.hk_model_step(self._handle, self._step)
        return self.logits(batch)

    def profile(self, batch: Batch) -> StepProfile:
        """Do what `run` does, with a look at the clock around each op on each thread."""
        begun = time.perf_counter_ns()
        self.load(batch)
        times = np.zeros((self._pool.threads, len(self._ops), 2), np.int64)
        address = library.pointer(times, "hk_op_time *")
        with self._pool.lock:
            called = time.perf_counter_ns()
            step = int(self._lib.hk_model_profile(self._handle, self._step, address))
            done = time.perf_counter_ns()
        return StepProfile(
            logits=self._logits[: batch.logit_rows],
            ops=self._ops,
            wait=times[:, :, 0],
            work=times[:, :, 1],
            step=step,
            call=done - called,
            before=called - begun,
        )

    def run_part(
        self,
        first: int,
        last: int,
        brought: Sequence[npt.NDArray[np.uint32]] = (),
        *,
        put: int = -1,
        values: npt.NDArray[np.uint32] | None = None,
        scales: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        """Run ops first to last - 1 of the batch that was loaded; parts come in order and cover all ops.

        brought: the products of the first of them, which are matmuls, as bits of floats, shape
        (rows * outputs,). put: a buffer whose rows are copied to values then, and to scales where it is
        quantised.
        """
        products = self._ffi.new("float *[]", [library.pointer(each, "float *") for each in brought])
        segment = self._ffi.new("hk_segment *")
        segment.first, segment.last, segment.brought = first, last, len(brought)
        segment.products, segment.put = products, put
        if values is not None:
            segment.values = library.pointer(values, "void *")
        if scales is not None:
            segment.scales = library.pointer(scales, "float *")
        with self._pool.lock:
            self._lib.hk_model_run(self._handle, self._step, segment)

    def logits(self, batch: Batch) -> Logits:
        """Return the logits of a batch that was loaded and run."""
        return self._logits[: batch.logit_rows]

    def hidden(self, batch: Batch) -> Hidden:
        """Return the hidden states of a batch that was loaded and run."""
        return self._hidden[batch.logit_rows : batch.logit_rows + batch.hidden_rows, : self._width]

    @property
    def op_count(self) -> int:
        """How many ops a step has."""
        return len(self._ops)

    def lay_out(self, weight: int, values: npt.NDArray[np.uint32], scales: npt.NDArray[np.uint32]) -> None:
        """Write a weight, by its number, in the words that rails_layout.c describes."""
        packed, (layout, rows, columns) = self._weights[weight], self._matrices[weight]
        source, words = library.pointer(packed, "void *"), library.pointer(values, "uint32_t *")
        with self._pool.lock:
            self._lib.hk_rails_pack(
                self._pool.handle, layout, source, rows, columns, words, library.pointer(scales, "uint32_t *")
            )

    def load(self, batch: Batch) -> None:
        """Set the step up for a batch. Raises ExecutorError for what would lead the kernels astray."""
        scored, hidden = select(batch)
        page_tables = self._page_tables = self._load_rows(batch)
        selected = len(scored) + len(hidden)
        self._selection[:selected] = (*scored, *hidden)
        if len(self._logits) < len(scored):
            self._logits = np.empty((len(scored), self.vocabulary), np.float32)
        if len(self._hidden) < selected:
            self._hidden = self._hidden_states(selected)
        step = self._step
        step.rows = batch.rows
        step.tokens = library.pointer(self._tokens, "int32_t *")
        step.positions = library.pointer(self._positions, "int32_t *")
        step.sequences = library.pointer(self._sequences, "int32_t *")
        step.pages = library.pointer(page_tables, "int32_t *")
        step.page_columns = page_tables.shape[1]
        step.selected, step.scored = selected, len(scored)
        step.selection = library.pointer(self._selection, "int32_t *")
        step.hidden = library.pointer(self._hidden, "float *")
        step.logits = library.pointer(self._logits, "float *")

    def _hidden_states(self, rows: int) -> Hidden:
        """Return room for so many hidden states in whole blocks, zeros."""
        block = int(self._lib.HK_BLOCK)
        stride = -(-self._width // block) * block
        states = library.aligned_empty(rows * stride * _FLOAT_BYTES).view(np.float32).reshape(rows, stride)
        states.fill(0)
        return states

    def _load_rows(self, batch: Batch) -> npt.NDArray[np.int32]:
        """Write the batch's rows into the step's arrays and return the page tables.

        Raises ExecutorError for what would lead the kernels astray.
        """
        if not self._handle:
            raise ExecutorError("the executor is closed")
        if not 1 <= batch.rows <= self.max_rows:
            raise ExecutorError(f"a step of {batch.rows} rows; 1 to {self.max_rows} are possible")
        columns = max(len(chunk.pages) for chunk in batch.chunks)
        page_tables = np.zeros((len(batch.chunks), max(columns, 1)), np.int32)
        row = 0
        for number, chunk in enumerate(batch.chunks):
            end = row + len(chunk.tokens)
            if chunk.start < 0 or (chunk.start + len(chunk.tokens)) > len(chunk.pages) * PAGE_POSITIONS:
                raise ExecutorError(
                    f"positions {chunk.start} to {chunk.start + len(chunk.tokens) - 1} do not lie in "
                    f"{len(chunk.pages)} pages"
                )
            self._tokens[row:end] = chunk.tokens
            self._positions[row:end] = np.arange(chunk.start, chunk.start + len(chunk.tokens))
            self._sequences[row:end] = number
            page_tables[number, : len(chunk.pages)] = chunk.pages
            row = end
        _check_ids("token", self._tokens[:row], self._token_ids)
        _check_ids("page", page_tables, self.pages)
        return page_tables

    def copy_rows(self, source: int, target: int, positions: int) -> None:
        """See `Executor.copy_rows`. Raises ExecutorError for what would lead the kernels astray."""
        if not self._handle:
            raise ExecutorError("the executor is closed")
        _check_ids("page", np.array([source, target], np.int32), self.pages)
        if source == target or not 0 <= positions <= PAGE_POSITIONS:
            raise ExecutorError(f"{positions} rows cannot be copied from page {source} to page {target}")
        self._lib.hk_model_copy_rows(self._handle, source, target, positions)

    def read_rows(
        self, layer: int, pages: Sequence[int], start: int, stop: int, out: npt.NDArray[np.uint8]
    ) -> None:
        """See `Executor.read_rows`."""
        self._move(self._lib.hk_model_read_rows, layer, pages, start, stop, out)

    def write_rows(
        self, layer: int, pages: Sequence[int], start: int, stop: int, rows: npt.NDArray[np.uint8]
    ) -> None:
        """See `Executor.write_rows`."""
        self._move(self._lib.hk_model_write_rows, layer, pages, start, stop, rows)

    def _move(
        self,
        function: Any,
        layer: int,
        pages: Sequence[int],
        start: int,
        stop: int,
        rows: npt.NDArray[np.uint8],
    ) -> None:
        if not self._handle:
            raise ExecutorError("the executor is closed")
        check_move(self, layer, pages, start, stop, rows)
        table = np.array(pages, np.int32)
        address = library.pointer(rows, "uint8_t *")
        function(self._handle, layer, library.pointer(table, "int32_t *"), start, stop, address)

    def close(self) -> None:
        """See `Executor.close`."""
        if self._handle:
            self._lib.hk_model_destroy(self._handle)
            self._handle = None
            self._weights.clear()
            self._vectors.clear()
            self._shapes.clear()


def _check_ids(what: str, ids: npt.NDArray[np.int32], count: int) -> None:
    if ids.min() < 0 or ids.max() >= count:
        raise ExecutorError(f"a {what} id in {ids.min()} to {ids.max()}; ids run from 0 to {count - 1}")


def _pack_all(
    file: GGUFFile, names: Sequence[str], pool: ThreadPool, progress: Progress | None
) -> list[npt.NDArray[np.uint8]]:
    sizes = [file.tensors[name].nbytes for name in names]
    packed = []
    for number, name in enumerate(names, start=1):
        packed.append(_pack(file, name, pool))
        if progress is not None:
            progress(sum(sizes[:number]), sum(sizes))
    return packed


def _pack(file: GGUFFile, name: str, pool: ThreadPool) -> npt.NDArray[np.uint8]:
    """Return a matrix in its packed layout."""
    _, lib = library.load()
    tensor = file.tensors[name]
    rows, columns = tensor.shape
    layout = lib.hk_layout_of(tensor.format.id)
    try:
        packed = library.aligned_empty(lib.hk_packed_bytes(layout, rows, columns))
    except MemoryError:
        raise ModelError(f"{file.path}: no memory to pack tensor {name}") from None
    source = file.data(name)
    with pool.lock:
        lib.hk_pack(
            pool.handle,
            tensor.format.id,
            library.pointer(source, "void *"),
            rows,
            columns,
            library.pointer(packed, "void *"),
        )
    return packed
