"""Rows that go from one region to another, and between a region and the host, as bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tierd.backends.protocol import MOVE_BYTES
from tierd.backends.resident import manifest
from tierd.backends.resident.assembly import Shader
from tierd.backends.resident.memory import ModelMemory, Shape
from tierd.backends.resident.program import Pipelines
from tierd.backends.resident.regions import STRIP, UNIT, strip_bytes
from tierd.backends.vkapi import Buffer, Commands, Device, Pipeline, Role
from tierd.models.formats import KVCodec
from tierd.models.plan import RowStore

# Of a group of rows.comp, and the units that one of copy.comp copies.
_LANES = 64
_COPIED_UNITS = 512

Bytes = npt.NDArray[np.uint8]


def staged_bytes(stores: Iterable[RowStore], codec: KVCodec, positions: int) -> int:
    """Return the bytes through which rows go, for each direction. positions: of a region."""
    rows = max(2 * store.heads * codec.row_bytes(store.head_size) for store in stores)
    return -(-min(MOVE_BYTES, rows * positions) // UNIT) * UNIT


def table_bytes(stores: Sequence[RowStore]) -> int:
    """Return the bytes of the table of planes, of which a layer has four at most."""
    return 4 * UNIT * len(stores)


class Transfers:
    """Transfers of one model. A copy may be asked for by any thread; rows are moved by one, the runner's."""

    def __init__(
        self,
        device: Device,
        pipelines: Pipelines,
        memory: ModelMemory,
        stores: Sequence[RowStore],
        codec: KVCodec,
        *,
        shape: Shape,
        wait: Callable[[int], None],
    ) -> None:
        """stores: in the plan's order. wait: waits for a value."""
        self._device = device
        self._stores = stores
        self._codec = codec
        self._shape = shape
        self._wait = wait
        self._rows = [memory.places.rows[store.layer] for store in stores]
        self._lock = threading.Lock()  # of the copies
        self._noted: list[tuple[int, int, int]] = []
        self._copying: list[tuple[int, Commands]] = []
        table = self._copy_table()
        self._planes = memory.upload(table).address
        most = table.max(axis=0)
        self._copy_heads, self._copy_units, self._copy_planes = int(most[2]), int(most[3]), len(table)
        self._copy_pipeline = pipelines.get(Shader("copy"))
        size = staged_bytes(stores, codec, shape.positions)
        self._out, self._in = memory.buffer(size, Role.READBACK), memory.buffer(size, Role.UPLOAD)
        self._staged_out, self._staged_in = _bytes_of(self._out), _bytes_of(self._in)
        self._read_pipelines, self._write_pipelines = (
            [pipelines.get(self._shader(store, direction)) for store in stores]
            for direction in ("read", "write")
        )

    def copy(self, source: int, target: int, positions: int) -> None:
        """Note that a region's first positions are to be copied to another, before what is submitted next."""
        with self._lock:
            self._noted.append((source, target, positions))

    def submit_copies(self) -> None:
        """Submit the copies that were asked for. They stay noted if that fails."""
        with self._lock:
            noted = [copy for copy in self._noted if copy[2]]
            if noted:
                self._copying.append(self._copy(noted))
            self._noted.clear()

    def forget_copies(self, value: int) -> None:
        """Free what belongs to copies that were done by the time a value was signalled."""
        with self._lock:
            while self._copying and self._copying[0][0] <= value:
                self._copying.pop(0)[1].close()

    def read(self, layer: int, region: int, start: int, out: Bytes) -> None:
        """Copy rows from position `start` on out of a region, shape (rows, bytes of a row)."""
        self._move(self._read_pipelines[layer], self._out, layer, region, start, len(out))
        out.reshape(-1)[:] = self._staged_out[: out.size]

    def write(self, layer: int, region: int, start: int, rows: Bytes) -> None:
        """Copy rows into a region, from position `start` on."""
        self._staged_in[: rows.size] = rows.reshape(-1)
        self._move(self._write_pipelines[layer], self._in, layer, region, start, len(rows))

    @property
    def last(self) -> int:
        """The value that the last copy signals, 0 where none is under way."""
        return self._copying[-1][0] if self._copying else 0

    def _move(
        self, pipeline: Pipeline, staged: Buffer, layer: int, region: int, start: int, rows: int
    ) -> None:
        """Move so many rows between a region and what is staged, and wait until they are there."""
        self.submit_copies()
        store, planes = self._stores[layer], self._rows[layer]
        push = manifest.pack(
            manifest.kernel("rows"),
            k_quants=planes.k_quants,
            k_scales=planes.k_scales,
            v_quants=planes.v_quants,
            v_scales=planes.v_scales,
            staged=staged.address,
            region=region,
            positions=self._shape.positions,
            start=start,
            rows=rows,
        )
        codec = self._codec
        part = 2 * codec.bytes if codec.elements > 1 else UNIT
        parts = rows * 2 * store.heads * codec.row_bytes(store.head_size) // part
        with self._device.recorder() as recorder:
            recorder.bind(pipeline)
            recorder.push(push)
            recorder.dispatch(-(-parts // _LANES))
            commands = recorder.finish()
            self._wait(self._device.submit(commands))
        commands.close()

    def _copy(self, copies: Iterable[tuple[int, int, int]]) -> tuple[int, Commands]:
        """Submit copies, in order: each may take what the one before has brought."""
        kernel = manifest.kernel("copy")
        with self._device.recorder() as recorder:
            recorder.bind(self._copy_pipeline)
            for source, target, positions in copies:
                strips = -(-positions // STRIP)
                push = {"planes": self._planes, "source": source, "target": target, "strips": strips}
                recorder.push(manifest.pack(kernel, **push, region_strips=self._shape.positions // STRIP))
                groups = -(-strips * self._copy_units // _COPIED_UNITS)
                recorder.dispatch(groups, self._copy_heads, self._copy_planes)
                recorder.barrier()
            commands = recorder.finish()
            return self._device.submit(commands), commands

    def _copy_table(self) -> npt.NDArray[np.uint32]:
        """Return what `shaders/copy.comp` reads of all planes, shape (planes, 4)."""
        table: list[tuple[int, int, int, int]] = []
        for store, rows in zip(self._stores, self._rows, strict=True):
            strip = strip_bytes(store, self._codec)
            for address, size in (
                (rows.k_quants, strip.quants),
                (rows.v_quants, strip.quants),
                (rows.k_scales, strip.scales),
                (rows.v_scales, strip.scales),
            ):
                if size:
                    table.append((address & 0xFFFFFFFF, address >> 32, store.heads, size // UNIT))
        return np.array(table, np.uint32)

    def _shader(self, store: RowStore, direction: str) -> Shader:
        constants = (("HEAD_SIZE", store.head_size), ("KV_HEADS", store.heads))
        return Shader("rows", f"{self._codec.name}.{direction}", constants)


def _bytes_of(buffer: Buffer) -> Bytes:
    """Return the bytes of a buffer that the host sees."""
    assert buffer.view is not None
    return np.frombuffer(buffer.view, np.uint8)
