"""Runs a model's steps on a device: a block is written, a recording submitted, its value waited for."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tierd.backends.moves import check_move, row_bytes
from tierd.backends.patience import step_timeout_s
from tierd.backends.picking import check_draws, measure
from tierd.backends.protocol import NO_HIDDEN_STATES, Hidden, Logits
from tierd.backends.resident import regions
from tierd.backends.resident.assembly import Assembler, Dispatch
from tierd.backends.resident.draws import Draws
from tierd.backends.resident.grid import Grids, Live
from tierd.backends.resident.lowering import Lowering
from tierd.backends.resident.matmuls import FEW_ROWS
from tierd.backends.resident.memory import (
    SEATS,
    ModelMemory,
    Shape,
    hidden_bytes,
    logits_bytes,
    logits_stride,
)
from tierd.backends.resident.places import FloatRows, StepPlaces
from tierd.backends.resident.profile import StepProfile, name_dispatches
from tierd.backends.resident.program import Pipelines, Recording, Sequencer
from tierd.backends.resident.split import Split
from tierd.backends.resident.step_block import StepBlock, block_bytes, rows_of
from tierd.backends.resident.transfers import Transfers
from tierd.backends.selection import select
from tierd.backends.vkapi import Commands, Device, Role
from tierd.core import Batch, Draw, TokenLogprobs
from tierd.errors import DeviceError, ExecutorError
from tierd.models.formats import KVCodec
from tierd.models.plan import Plan


@dataclass(frozen=True, slots=True)
class Size:
    """What a recording is for: most rows fed, 0 where none are.

    selected: most of which something is wanted. scored: most of these whose logits are.
    """

    rows: int
    selected: int
    scored: int


def classes(most: int) -> tuple[int, ...]:
    """Return the numbers of rows that recordings are made for, ascending, `most` the last."""
    return (*(few for few in FEW_ROWS if few < most), most)


def smallest(rows: int, most: int) -> int:
    """Return the class of a number of rows; 0 for none."""
    return next(count for count in (0, *classes(most)) if rows <= count)


class Seat:
    """What one of the steps in flight has to itself: its block, logits, draws and recordings.

    arrived: where rows of logits come to that are read back, shape (selected, vocabulary). reads: recordings
    that read one of them back, by row.
    states: where the hidden states of a step's selected rows come to, shape (max_rows, width). returns:
    recordings that bring them there, by how many there are at most.
    """

    def __init__(
        self, memory: ModelMemory, vocabulary: int, hidden: FloatRows, shape: Shape, grids: Grids
    ) -> None:
        """hidden: where steps leave hidden states."""
        size = block_bytes(max_rows=shape.max_rows, grids=grids)
        self.block = StepBlock(memory.buffer(size, Role.STEP), max_rows=shape.max_rows, grids=grids)
        stride = logits_stride(vocabulary)
        self.row_bytes = logits_bytes(vocabulary, 1)
        self.logits = memory.buffer(shape.selected * self.row_bytes, Role.DEVICE)
        self.logits_rows = FloatRows(self.logits.address, vocabulary, stride)
        self.arrival = memory.buffer(self.logits.size, Role.READBACK)
        assert self.arrival.view is not None
        arrived = np.frombuffer(self.arrival.view, np.float32).reshape(shape.selected, stride)
        self.arrived: Logits = arrived[:, :vocabulary]
        self.state_arrival = memory.buffer(hidden_bytes(hidden.width, shape.max_rows), Role.READBACK)
        assert self.state_arrival.view is not None
        states = np.frombuffer(self.state_arrival.view, np.float32).reshape(shape.max_rows, hidden.stride)
        self.states: Hidden = states[:, : hidden.width]
        self.draws = Draws(memory, vocabulary, shape.selected)
        self.recordings: dict[Size, Recording] = {}
        self.reads: list[Commands] = []
        self.returns: dict[int, Commands] = {}

    def places(self, before: Seat) -> StepPlaces:
        """Return its addresses; before: the seat of the step before."""
        block = self.block
        return StepPlaces(
            block=block.block,
            selection=block.selection,
            before=before.draws.sampled,
            logits=self.logits_rows,
        )

    def close(self) -> None:
        """Free its recordings; the device is done with them."""
        recordings = [each.commands for each in self.recordings.values()]
        for commands in (*recordings, *self.reads, *self.returns.values()):
            commands.close()


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step that was submitted: the value it signals, its seat, and the rows whose logits are wanted.

    read: those of them that are read back behind it, by place. hidden: the hidden states that come back.
    """

    value: int
    seat: Seat
    scored: Sequence[int]
    draws: tuple[Draw, ...]
    read: Sequence[int]
    hidden: Hidden


class ResidentResult:
    """The tokens that were drawn, the rows of logits that were read back, what is told of others, and hidden
    states.
    """

    def __init__(
        self,
        drawn: Sequence[int | None],
        rows: Mapping[int, Logits],
        told: Mapping[int, TokenLogprobs] | None = None,
        hidden: Hidden = NO_HIDDEN_STATES,
    ) -> None:
        self.hidden = hidden
        self.rows_read = len(rows) if drawn else 0
        self.hidden_read = len(hidden)
        self._drawn = drawn
        self._rows = rows
        self._told = told or {}

    def drawn(self, row: int) -> int | None:
        """See Result."""
        return self._drawn[row] if self._drawn else None

    def logits(self, row: int) -> Logits:
        """See Result."""
        return self._rows[row]

    def logprobs(self, row: int, token: int, top: int) -> TokenLogprobs:
        """See Result."""
        return self._told[row] if row in self._told else measure(self._rows[row], token, top)


class ResidentExecutor:
    """A plan compiled for a device, with its weights and its regions of K/V there. A page is a region.

    Where the device fails in a step, or while rows are moved, it is given up with all that is on it: that
    raises DeviceError, and whatever is called then raises DeviceLostError at once.
    """

    name = "gpu"
    depth = SEATS
    prefill_continues = True
    rewinds = True

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
        at_once: bool = True,
    ) -> None:
        """Use `ResidentBackend.arm`. Takes the memory over, to close it with itself.

        at_once: record steps of all sizes now, so that what the device refuses is known; else the usual ones,
        and others when they are first wanted.
        """
        self.vocabulary = plan.vocabulary
        self.pages = shape.regions
        self.page_positions = shape.positions
        self.page_bytes = regions.region_bytes(lowering.stores.values(), codec, shape.positions)
        self.row_bytes = row_bytes(plan, codec)
        self.max_rows = shape.max_rows
        self.logit_rows = shape.selected
        self._device = device
        self._pipelines = pipelines
        self._lowering = lowering
        self._memory = memory
        self._codec = codec
        self._shape = shape
        self._split = split
        self._grids = self._known_grids()
        self._hidden = memory.places.floats[plan.hidden]
        self._seats = [Seat(memory, plan.vocabulary, self._hidden, shape, self._grids) for _ in range(SEATS)]
        self._flights: deque[_Flight] = deque()
        self._submitted = 0
        self._drawable = 0
        self._transfers = Transfers(
            device,
            pipelines,
            memory,
            list(lowering.stores.values()),
            codec,
            shape=shape,
            wait=self._wait,
        )
        try:
            for seat in self._seats:
                self._record_reads(seat)
                self._record_returns(seat)
                for size in self._sizes() if at_once else self._usual_sizes():
                    self._recording(seat, size)
        except BaseException:
            for seat in self._seats:
                seat.close()
            raise

    @property
    def calls(self) -> int:
        """The number of Vulkan calls made on its device so far, by whomever."""
        return self._device.calls

    def submit(self, batch: Batch) -> None:
        """See `Executor.submit`."""
        with self._failing():
            self._launch(batch, timed=False)

    def profile(self, batch: Batch) -> StepProfile:
        """Run a step as `submit` and `collect` do, and time its dispatches. None may be in flight.

        Raises what these do, and DeviceError where there are no timestamps.
        """
        if self._flights:
            raise ExecutorError(f"{len(self._flights)} steps are in flight; a profiled one is alone")
        size, recording = self._launch(batch, timed=True)
        result = self.collect()
        seconds = np.diff(self._device.timestamps(recording.commands))
        recording.commands.close()
        lowered = self._lowering
        ops = [
            *lowered.body,
            *(lowered.tail if size.selected else ()),
            *(lowered.head if size.scored else ()),
        ]
        names = name_dispatches(self._program(self._seats[0], size), ops)
        return StepProfile(result=result, names=names, seconds=seconds, barriers=recording.barriers)

    def collect(self) -> ResidentResult:
        """See `Executor.collect`."""
        flight = self._flights[0]
        try:
            with self._failing():
                self._wait(flight.value)
                self._transfers.forget_copies(flight.value)
                if not flight.draws:
                    return ResidentResult((), self._all_rows(flight), hidden=flight.hidden)
                return self._result(flight)
        finally:
            self._flights.popleft()

    def run(self, batch: Batch) -> Logits:
        """Feed the batch's rows; return logits, shape (batch.logit_rows, vocabulary)."""
        self.submit(batch)
        result = self.collect()
        rows = [result.logits(row) for row in range(batch.logit_rows)]
        return np.array(rows, np.float32).reshape(len(rows), self.vocabulary)

    def dispatches(self, rows: int, scored: int, hidden: int = 0) -> list[Dispatch]:
        """Return what a step of so many rows runs, in order.

        scored, hidden: those whose logits are wanted, and those whose hidden states are.
        """
        return self._program(self._seats[0], self._size(rows, scored, hidden))

    def copy_rows(self, source: int, target: int, positions: int) -> None:
        """See `Executor.copy_rows`. Only notes it: the next step goes behind it."""
        if source == target or not all(0 <= region < self.pages for region in (source, target)):
            raise ExecutorError(f"rows cannot be copied from region {source} to region {target}")
        if not 0 <= positions <= self.page_positions:
            raise ExecutorError(f"{positions} rows do not lie in a region of {self.page_positions}")
        self._transfers.copy(source, target, positions)

    def read_rows(
        self, layer: int, pages: Sequence[int], start: int, stop: int, out: npt.NDArray[np.uint8]
    ) -> None:
        """See `Executor.read_rows`."""
        region = self._region_of(layer, pages, start, stop, out)
        if len(out):
            with self._failing():
                self._transfers.read(layer, region, start, out)

    def write_rows(
        self, layer: int, pages: Sequence[int], start: int, stop: int, rows: npt.NDArray[np.uint8]
    ) -> None:
        """See `Executor.write_rows`."""
        region = self._region_of(layer, pages, start, stop, rows)
        if len(rows):
            with self._failing():
                self._transfers.write(layer, region, start, rows)

    def close(self) -> None:
        """See `Executor.close`. Waits for what was submitted; where the device is given up, for nothing."""
        last = max([*(flight.value for flight in self._flights), self._transfers.last])
        with contextlib.suppress(DeviceError):
            if last:
                self._wait(last)
        self._flights.clear()
        for seat in self._seats:
            seat.close()
        self._seats.clear()
        self._transfers.forget_copies(last)
        self._memory.close()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Give the device up where it fails meanwhile: what it holds is not known any more."""
        try:
            yield
        except DeviceError as error:
            self._device.abandon(error)
            raise

    def _launch(self, batch: Batch, *, timed: bool) -> tuple[Size, Recording]:
        """Submit a step; return what was submitted. timed: as a recording of its own, with timestamps."""
        if len(self._flights) >= self.depth:
            raise ExecutorError(f"{len(self._flights) + 1} steps were submitted; {self.depth} are possible")
        if not 1 <= batch.rows <= self.max_rows:
            raise ExecutorError(f"a step of {batch.rows} rows; 1 to {self.max_rows} are possible")
        check_draws(batch, self.vocabulary)
        scored, hidden = select(batch)
        rows = rows_of(
            batch,
            positions=self.page_positions,
            regions=self.pages,
            token_ids=self._lowering.token_ids,
            drawn=self._drawable,
        )
        most = self._shape.selected
        if batch.draws and len(scored) > most:
            raise ExecutorError(f"{len(scored)} rows are to be drawn from; {most} are possible")
        first = scored[:most]
        selection = [*first, *hidden]
        seat = self._seats[self._submitted % SEATS]
        self._transfers.submit_copies()
        splits = self._split.count(batch.rows, int(rows[:, 1].max()))
        seat.block.write(rows, selection, len(first), splits)
        needed = seat.draws.write(batch.draws or (Draw(),) * len(first))
        size = self._size(batch.rows, len(first), len(hidden))
        recording = self._record(seat, size, timed=True) if timed else self._recording(seat, size)
        value = self._device.submit(recording.commands)
        for row in needed:  # read back ahead of the next step
            value = self._device.submit(seat.reads[row])
        if hidden:
            value = self._device.submit(seat.returns[smallest(len(selection), self.max_rows)])
        self._submitted += 1
        self._drawable = len(batch.draws)
        states = seat.states[len(first) : len(selection)]
        self._flights.append(_Flight(value, seat, scored, batch.draws, needed, states))
        return size, recording

    def _result(self, flight: _Flight) -> ResidentResult:
        """Return what came of a step that draws, having read back the rows that it turns out to need."""
        draws = flight.seat.draws
        drawn = draws.drawn()
        missing = [row for row, token in enumerate(drawn) if token is None and row not in flight.read]
        rows = {row: flight.seat.arrived[row] for row in flight.read} | self._read(flight.seat, missing)
        told = {
            row: draws.logprobs(row)
            for row, draw in enumerate(flight.draws)
            if draw.top_logprobs is not None and row not in rows
        }
        return ResidentResult(drawn, rows, told, flight.hidden)

    def _region_of(
        self, layer: int, pages: Sequence[int], start: int, stop: int, rows: npt.NDArray[np.uint8]
    ) -> int:
        """Return the region whose rows are to move. Raises ExecutorError for what does not fit."""
        if len(pages) != 1:
            raise ExecutorError(f"rows lie in regions {list(pages)}; one is needed")
        check_move(self, layer, pages, start, stop, rows)
        return pages[0]

    def _wait(self, value: int) -> None:
        """Wait for a value. A device that does not signal it in time, or is lost, gives itself up."""
        self._device.wait(value, step_timeout_s(software=self._device.facts.dear_loads))

    def _read(self, seat: Seat, rows: Sequence[int]) -> dict[int, Logits]:
        """Return rows of a seat's logits, read back; valid as long as the seat is."""
        values = [self._device.submit(seat.reads[row]) for row in rows]
        if values:
            self._wait(values[-1])
        return {row: seat.arrived[row] for row in rows}

    def _all_rows(self, flight: _Flight) -> dict[int, Logits]:
        """Return the logits of all rows that a step wants them of, be they more than are computed at once."""
        most, seat, selection = self._shape.selected, flight.seat, flight.scored
        if len(selection) > most and len(self._flights) > 1:
            raise ExecutorError(f"logits of {len(selection)} rows are wanted while another step runs")
        rows: dict[int, Logits] = {}
        for start in range(0, len(selection), most):
            part = selection[start : start + most]
            if start:
                seat.block.select(part)
                recording = self._recording(seat, self._size(0, len(part)))
                value = self._device.submit(recording.commands)
                self._wait(value)
            for row, logits in self._read(seat, range(len(part))).items():
                rows[start + row] = logits.copy() if len(selection) > most else logits
        return rows

    def _size(self, rows: int, scored: int, hidden: int = 0) -> Size:
        """Return the size of a step of so many rows, of which so many have logits or hidden states wanted.

        Those that want any hidden states, which are few, are recorded for as many as there may be.
        """
        logits = smallest(scored, self._shape.selected)
        return Size(smallest(rows, self.max_rows), self.max_rows if hidden else logits, logits)

    def _sizes(self) -> list[Size]:
        """Those of all steps that want logits or nothing, and the largest that wants hidden states."""
        scored = classes(self._shape.selected)
        fed = classes(self.max_rows)
        sizes = [self._size(rows, count) for rows in (0, *fed) for count in (0, *scored) if rows or count]
        return [*sizes, self._size(self.max_rows, 0, self.max_rows)]

    def _usual_sizes(self) -> list[Size]:
        """Those of steps that only generate, and of prompts alone."""
        most = self._shape.selected
        generating = [self._size(rows, min(rows, most)) for rows in classes(self.max_rows)[:-1]]
        return [*generating, self._size(self.max_rows, 0), self._size(self.max_rows, 1)]

    def _known_grids(self) -> Grids:
        """Return all grids of all sizes: a block has room for these."""
        grids = Grids()
        nowhere = StepPlaces(block=0, selection=0, before=0, logits=FloatRows(0, self.vocabulary, 0))
        draws = Draws.grids(self.vocabulary)
        for rows in classes(self.max_rows):
            body = self._assembler(nowhere, rows, Live.ROWS).dispatches(self._lowering.body)
            tail = self._assembler(nowhere, rows, Live.SELECTED).dispatches(self._lowering.tail)
            head = self._assembler(nowhere, rows, Live.SCORED).dispatches(self._lowering.head)
            for grid in (*(dispatch.grid for dispatch in (*body, *tail, *head)), *draws):
                grids.number(grid)
        return grids

    def _recording(self, seat: Seat, size: Size) -> Recording:
        if size not in seat.recordings:
            seat.recordings[size] = self._record(seat, size)
        return seat.recordings[size]

    def _record_reads(self, seat: Seat) -> None:
        for row in range(self._shape.selected):
            start = row * seat.row_bytes
            with self._device.recorder() as recorder:
                recorder.copy(seat.logits, seat.arrival, [(start, start, seat.row_bytes)])
                seat.reads.append(recorder.finish())

    def _record_returns(self, seat: Seat) -> None:
        activations, hidden = self._memory.activations, self._hidden
        for rows in classes(self.max_rows):
            size = hidden_bytes(hidden.width, rows)
            with self._device.recorder() as recorder:
                recorder.copy(
                    activations, seat.state_arrival, [(hidden.address - activations.address, 0, size)]
                )
                seat.returns[rows] = recorder.finish()

    def _record(self, seat: Seat, size: Size, *, timed: bool = False) -> Recording:
        program = self._program(seat, size)
        with self._device.recorder(timestamps=len(program) + 1 if timed else 0) as recorder:
            sequencer = Sequencer(recorder, self._pipelines, self._grids, seat.block, timed=timed)
            sequencer.add(program)
            return sequencer.finish()

    def _program(self, seat: Seat, size: Size) -> list[Dispatch]:
        places = seat.places(self._seats[self._seats.index(seat) - 1])
        program: list[Dispatch] = []
        if size.rows:
            body = self._assembler(places, size.rows, Live.ROWS)
            program += body.dispatches(self._lowering.body)
        if size.selected:
            tail = self._assembler(places, size.selected, Live.SELECTED)
            program += tail.dispatches(self._lowering.tail)
        if size.scored:
            head = self._assembler(places, size.scored, Live.SCORED)
            program += head.dispatches(self._lowering.head)
            program += seat.draws.dispatches(places.logits)
        return program

    def _assembler(self, step: StepPlaces, rows: int, live: Live) -> Assembler:
        facts = self._device.facts
        return Assembler(self._memory.places, step, self._codec, facts=facts, rows=rows, live=live)
