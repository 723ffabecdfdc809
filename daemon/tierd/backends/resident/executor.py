"""Runs a model's steps on a device: a block is written, a recording submitted, its value waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tierd.backends.protocol import Logits, LogitsResult
from tierd.backends.resident import regions
from tierd.backends.resident.assembly import FEW_ROWS, Assembler
from tierd.backends.resident.grid import Grids, Live
from tierd.backends.resident.lowering import Lowering
from tierd.backends.resident.memory import SEATS, ModelMemory, Shape, logits_bytes, logits_stride
from tierd.backends.resident.places import FloatRows, StepPlaces
from tierd.backends.resident.program import Pipelines, Sequencer
from tierd.backends.resident.split import Split
from tierd.backends.resident.step_block import StepBlock, block_bytes, rows_of
from tierd.backends.vkapi import Commands, Device, Role
from tierd.core import Batch
from tierd.errors import ExecutorError
from tierd.models.formats import KVCodec
from tierd.models.plan import Plan

# A step that takes longer than this is taken for one that never ends.
_STEP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Size:
    """What a recording is for: most rows fed, 0 where none are, and most rows whose logits are wanted."""

    rows: int
    selected: int


def classes(most: int) -> tuple[int, ...]:
    """Return the numbers of rows that recordings are made for, ascending, `most` the last."""
    return (*(few for few in FEW_ROWS if few < most), most)


def smallest(rows: int, most: int) -> int:
    """Return the class of a number of rows; 0 for none."""
    return next(count for count in (0, *classes(most)) if rows <= count)


class Seat:
    """What one of the steps in flight has to itself: its block, its logits and its recordings."""

    def __init__(self, memory: ModelMemory, vocabulary: int, shape: Shape, grids: Grids) -> None:
        size = block_bytes(max_rows=shape.max_rows, selected=shape.selected, grids=grids)
        self.block = StepBlock(
            memory.buffer(size, Role.STEP), max_rows=shape.max_rows, selected=shape.selected, grids=grids
        )
        stride = logits_stride(vocabulary)
        self.row_bytes = logits_bytes(vocabulary, 1)
        self.logits = memory.buffer(shape.selected * self.row_bytes, Role.DEVICE)
        self.arrival = memory.buffer(self.logits.size, Role.READBACK)
        assert self.arrival.view is not None
        arrived = np.frombuffer(self.arrival.view, np.float32).reshape(shape.selected, stride)
        self.arrived: Logits = arrived[:, :vocabulary]
        self.recordings: dict[Size, Commands] = {}
        self.places = StepPlaces(
            block=self.block.block,
            selection=self.block.selection,
            before=0,
            logits=FloatRows(self.logits.address, vocabulary, stride),
        )


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step that was submitted: the value it signals, its seat, and all rows whose logits are wanted."""

    value: int
    seat: Seat
    selection: tuple[int, ...]


class ResidentExecutor:
    """A plan compiled for a device, with its weights and its regions of K/V there. A page is a region."""

    name = "gpu"
    depth = 1

    def __init__(
        self,
        device: Device,
        pipelines: Pipelines,
        plan: Plan,
        lowering: Lowering,
        memory: ModelMemory,
        *,
        codec: KVCodec,
        shape: Shape,
        split: Split,
    ) -> None:
        """Use `ResidentBackend.compile`. Takes the memory over, to close it with itself."""
        self.vocabulary = plan.vocabulary
        self.pages = shape.regions
        self.page_positions = shape.positions
        self.page_bytes = regions.region_bytes(lowering.stores.values(), codec, shape.positions)
        self.max_rows = shape.max_rows
        self._device = device
        self._pipelines = pipelines
        self._lowering = lowering
        self._memory = memory
        self._codec = codec
        self._shape = shape
        self._split = split
        self._token_ids = lowering.token_ids
        self._grids = self._known_grids()
        self._seats = [Seat(memory, plan.vocabulary, shape, self._grids) for _ in range(SEATS)]
        self._flights: deque[_Flight] = deque()
        self._submitted = 0
        self._copies: list[tuple[int, int, int]] = []
        self._copying: list[tuple[int, Commands]] = []
        for seat in self._seats:
            for size in self._sizes():
                seat.recordings[size] = self._record(seat, size)

    def submit(self, batch: Batch) -> None:
        """See `Executor.submit`."""
        if len(self._flights) >= self.depth:
            raise ExecutorError(f"{len(self._flights) + 1} steps were submitted; {self.depth} are possible")
        if not 1 <= batch.rows <= self.max_rows:
            raise ExecutorError(f"a step of {batch.rows} rows; 1 to {self.max_rows} are possible")
        rows = rows_of(
            batch,
            positions=self.page_positions,
            regions=self.pages,
            token_ids=self._token_ids,
            drawn=0,
        )
        selection = _selection(batch)
        first = selection[: self._shape.selected]
        seat = self._seats[self._submitted % SEATS]
        self._copy()
        seat.block.write(rows, first, self._split.count(batch.rows, int(rows[:, 1].max())))
        size = Size(smallest(batch.rows, self.max_rows), smallest(len(first), self._shape.selected))
        value = self._device.submit(seat.recordings[size])
        self._submitted += 1
        self._flights.append(_Flight(value, seat, selection))

    def collect(self) -> LogitsResult:
        """See `Executor.collect`."""
        flight = self._flights[0]
        try:
            self._device.wait(flight.value, _STEP_TIMEOUT_S)
            self._forget_copies(flight.value)
            most = self._shape.selected
            if len(flight.selection) <= most:
                return LogitsResult(flight.seat.arrived[: len(flight.selection)])
            return LogitsResult(np.concatenate([*self._windows(flight)]))
        finally:
            self._flights.popleft()

    def run(self, batch: Batch) -> Logits:
        """Feed the batch's rows; return logits, shape (batch.logit_rows, vocabulary)."""
        self.submit(batch)
        result = self.collect()
        rows = [result.logits(row) for row in range(batch.logit_rows)]
        return np.array(rows, np.float32).reshape(len(rows), self.vocabulary)

    def copy_rows(self, source: int, target: int, positions: int) -> None:
        """See `Executor.copy_rows`. Only notes it: the next step goes behind it."""
        if source == target or not all(0 <= region < self.pages for region in (source, target)):
            raise ExecutorError(f"rows cannot be copied from region {source} to region {target}")
        if not 0 <= positions <= self.page_positions:
            raise ExecutorError(f"{positions} rows do not lie in a region of {self.page_positions}")
        self._copies.append((source, target, positions))

    def close(self) -> None:
        """See `Executor.close`. Waits for what was submitted."""
        if self._flights:
            self._device.wait(self._flights[-1].value, _STEP_TIMEOUT_S)
            self._flights.clear()
        for seat in self._seats:
            for commands in seat.recordings.values():
                commands.close()
        self._seats.clear()
        self._forget_copies(self._copying[-1][0] if self._copying else 0)
        self._memory.close()

    def _windows(self, flight: _Flight) -> Iterable[Logits]:
        """Yield the logits of a step that wants more rows of them than are computed at once."""
        most, seat = self._shape.selected, flight.seat
        if len(self._flights) > 1:
            raise ExecutorError(f"logits of {len(flight.selection)} rows are wanted while another step runs")
        yield seat.arrived.copy()
        for start in range(most, len(flight.selection), most):
            part = flight.selection[start : start + most]
            seat.block.select(part)
            value = self._device.submit(seat.recordings[Size(0, smallest(len(part), most))])
            self._device.wait(value, _STEP_TIMEOUT_S)
            yield seat.arrived[: len(part)].copy()

    def _copy(self) -> None:
        """Submit the copies of rows that were asked for."""
        if not self._copies:
            return
        recorder = self._device.recorder()
        shape = (self._shape.regions, self._shape.positions)
        for source, target, positions in self._copies:
            for store in self._lowering.stores.values():
                buffer = self._memory.rows[store.layer]
                parts = regions.copies(store, self._codec, shape, source, target, positions)
                recorder.copy(buffer, buffer, parts)
            recorder.barrier()
        self._copies.clear()
        commands = recorder.finish()
        self._copying.append((self._device.submit(commands), commands))

    def _forget_copies(self, value: int) -> None:
        """Close the recordings of copies that were done by the time a value was signalled."""
        while self._copying and self._copying[0][0] <= value:
            self._copying.pop(0)[1].close()

    def _sizes(self) -> list[Size]:
        selected = classes(self._shape.selected)
        fed = classes(self.max_rows)
        return [Size(rows, count) for rows in (0, *fed) for count in (0, *selected) if rows or count]

    def _known_grids(self) -> Grids:
        """Return all grids of all sizes: a block has room for these."""
        grids = Grids()
        nowhere = StepPlaces(block=0, selection=0, before=0, logits=FloatRows(0, self.vocabulary, 0))
        for rows in classes(self.max_rows):
            body = self._assembler(nowhere, rows, Live.ROWS).dispatches(self._lowering.body)
            tail = self._assembler(nowhere, rows, Live.SELECTED).dispatches(self._lowering.tail)
            for dispatch in (*body, *tail):
                grids.number(dispatch.grid)
        return grids

    def _record(self, seat: Seat, size: Size) -> Commands:
        recorder = self._device.recorder()
        sequencer = Sequencer(recorder, self._pipelines, self._grids, seat.block)
        if size.rows:
            assembler = self._assembler(seat.places, size.rows, Live.ROWS)
            sequencer.add(assembler.dispatches(self._lowering.body))
        if size.selected:
            assembler = self._assembler(seat.places, size.selected, Live.SELECTED)
            sequencer.add(assembler.dispatches(self._lowering.tail))
            recorder.barrier()
            recorder.copy(seat.logits, seat.arrival, [(0, 0, size.selected * seat.row_bytes)])
        return recorder.finish()

    def _assembler(self, step: StepPlaces, rows: int, live: Live) -> Assembler:
        dot = self._device.facts.fast_dot
        return Assembler(self._memory.places, step, self._codec, dot=dot, rows=rows, live=live)


def _selection(batch: Batch) -> tuple[int, ...]:
    """Return the rows whose logits are wanted. Raises ExecutorError for one that does not exist."""
    selection: list[int] = []
    row = 0
    for chunk in batch.chunks:
        for offset in chunk.logit_rows:
            if not 0 <= offset < len(chunk.tokens):
                raise ExecutorError(f"logits of row {offset} in a chunk of {len(chunk.tokens)}")
            selection.append(row + offset)
        row += len(chunk.tokens)
    return tuple(selection)
