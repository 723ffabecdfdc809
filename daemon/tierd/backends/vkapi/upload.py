"""Uploads: bytes from the host into device memory, straight where the host sees it, else through staging."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tierd.backends.vkapi.commands import Commands, Recorder
from tierd.backends.vkapi.memory import Buffer, Memory
from tierd.backends.vkapi.memory_types import Role
from tierd.backends.vkapi.timeline import Timeline
from tierd.errors import DeviceError

CHUNK_BYTES = 64 << 20
# A copy may stand behind other work of its queue.
_PATIENCE_S = 60.0
# Pieces begin there, so that the host copies whole lines.
_LINE = 64

Fill = Callable[[memoryview, int, int], None]
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Part:
    """`size` bytes of the source from byte `source` on, and where they go: into `target` from `offset` on."""

    target: Buffer
    source: int
    size: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a part, and where it lies in the staging buffer."""

    part: Part
    start: int
    size: int
    place: int


class _Lane:
    """A staging buffer, and the copy out of it that may be on its way."""

    def __init__(self, buffer: Buffer, copies: Timeline, record: Callable[[Timeline], Recorder]) -> None:
        self._buffer = buffer
        self._copies = copies
        self._record = record
        self._commands: Commands | None = None
        self.value = 0

    def send(self, pieces: Sequence[_Piece], fill: Fill) -> None:
        """Fill the buffer and queue its copies."""
        self.settle()
        assert self._buffer.view is not None
        for piece in pieces:
            view = self._buffer.view[piece.place : piece.place + piece.size]
            fill(view, piece.part.source + piece.start, piece.size)
        with self._record(self._copies) as recorder:
            for piece in pieces:
                region = (piece.place, piece.part.offset + piece.start, piece.size)
                recorder.copy(self._buffer, piece.part.target, [region])
            self._commands = recorder.finish()
        self.value = self._copies.submit(self._commands)

    def settle(self) -> None:
        """Wait until the buffer may be filled again."""
        if self._commands is not None:
            self._copies.wait(self.value, _PATIENCE_S)
            self._commands.close()
            self._commands = None

    def close(self) -> None:
        """Free the buffer, once the copy is done."""
        with contextlib.suppress(DeviceError):  # then the upload has failed before
            self.settle()
        self._buffer.close()


class Uploader:
    """Copies parts, filling one staging buffer while the device reads another. One upload at a time."""

    def __init__(
        self, memory: Memory, copies: Timeline, steps: Timeline, record: Callable[[Timeline], Recorder]
    ) -> None:
        """copies: the queue that copies. steps: the queue that reads what was copied, perhaps the same."""
        self._memory = memory
        self._copies = copies
        self._steps = steps
        self._record = record
        self._lock = threading.Lock()

    def run(
        self, parts: Sequence[Part], fill: Fill, progress: Progress | None, *, chunk_bytes: int, chunks: int
    ) -> None:
        """See `Device.upload`."""
        for part in parts:
            if part.offset < 0 or part.size < 0 or part.offset + part.size > part.target.size:
                raise DeviceError(
                    f"an upload of {part.size} bytes to byte {part.offset} of a buffer of {part.target.size}"
                )
        done = 0

        def report(size: int) -> None:
            nonlocal done
            done += size
            if progress is not None:
                progress(done)

        with self._lock:
            for part in parts:
                _write(part, fill, report, chunk_bytes)
            staged = [part for part in parts if part.target.view is None and part.size]
            if staged:
                self._stage(staged, fill, report, chunk_bytes, chunks)

    def _stage(
        self, parts: Sequence[Part], fill: Fill, report: Progress, chunk_bytes: int, chunks: int
    ) -> None:
        room = min(chunk_bytes, sum(-(-part.size // _LINE) * _LINE for part in parts))
        with contextlib.ExitStack() as stack:
            lanes = []
            for _ in range(chunks):
                buffer = self._memory.buffer(room, Role.UPLOAD)
                lanes.append(
                    stack.enter_context(contextlib.closing(_Lane(buffer, self._copies, self._record)))
                )
            for pieces, lane in zip(_cut(parts, room), itertools.cycle(lanes), strict=False):
                lane.send(pieces, fill)
                report(sum(piece.size for piece in pieces))
            for lane in lanes:
                lane.settle()
        if self._steps is not self._copies:
            self._steps.follow(self._copies, max(lane.value for lane in lanes))


def _write(part: Part, fill: Fill, report: Progress, chunk_bytes: int) -> None:
    """Fill a target that the host sees; whatever is submitted later sees it."""
    view = part.target.view
    if view is None:
        return
    for start in range(0, part.size, chunk_bytes):
        size = min(part.size - start, chunk_bytes)
        first = part.offset + start
        fill(view[first : first + size], part.source + start, size)
        report(size)


def _cut(parts: Sequence[Part], room: int) -> Iterator[list[_Piece]]:
    """Cut parts into pieces and yield as many at a time as lie side by side in `room` bytes."""
    pieces: list[_Piece] = []
    place = 0
    for part in parts:
        start = 0
        while start < part.size:
            if place >= room:
                yield pieces
                pieces, place = [], 0
            size = min(part.size - start, room - place)
            pieces.append(_Piece(part, start, size, place))
            start += size
            place += -(-size // _LINE) * _LINE
    if pieces:
        yield pieces
