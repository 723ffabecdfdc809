"""How rows are drawn on the device: what goes up and what comes back; see `shaders/sampling.glsl`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tierd.backends.resident.assembly import Dispatch, Shader, dispatch
from tierd.backends.resident.grid import Grid, Live, Per
from tierd.backends.resident.memory import ModelMemory
from tierd.backends.resident.places import FloatRows
from tierd.backends.vkapi import Role
from tierd.core import Draw

# Bits of what is asked for and of what comes back.
_TAIL = 1
_PART_IDS, _PART_BLOCKS = 4096, 64
_CANDIDATES = 64
# Logits of a step that can be changed before they are drawn from; of a row with more, the host draws.
_MOST_CHANGES = 16384

_DRAW = np.dtype(
    [
        ("inverse", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("uniform", np.float32),
        ("top_k", np.uint32),
        ("first_change", np.uint32),
        ("changes", np.uint32),
        ("flags", np.uint32),
        ("allowed", np.uint64),
        ("unused", np.uint64),
    ]
)
_CHANGE = np.dtype([("id", np.uint32), ("bias", np.float32), ("repeat", np.float32), ("minus", np.float32)])
_PICKED = np.dtype(
    [
        ("id", np.int32),
        ("flags", np.uint32),
        ("logit", np.float32),
        ("lse", np.float32),
        ("candidates", np.uint32, (_CANDIDATES, 2)),
    ]
)
_MASS_BYTES = 16


class Draws:
    """The draws of one step in flight. sampled: address of the ids, for the next step to feed."""

    def __init__(self, memory: ModelMemory, vocabulary: int, rows: int) -> None:
        """rows: most whose logits are computed at once."""
        parts = -(-vocabulary // _PART_IDS)
        self._vocabulary = vocabulary
        asked = memory.buffer(rows * _DRAW.itemsize, Role.STEP)
        changes = memory.buffer(_MOST_CHANGES * _CHANGE.itemsize, Role.STEP)
        picked = memory.buffer(rows * _PICKED.itemsize, Role.READBACK)
        assert asked.view is not None
        assert changes.view is not None
        assert picked.view is not None
        self._asked = np.frombuffer(asked.view, _DRAW)
        self._changes = np.frombuffer(changes.view, _CHANGE)
        self._picked = np.frombuffer(picked.view, _PICKED)
        self._addresses = {
            "draws": asked.address,
            "changes": changes.address,
            "peaks": memory.buffer(rows * parts * _PART_BLOCKS * 4, Role.DEVICE).address,
            "masses": memory.buffer(rows * parts * _MASS_BYTES, Role.DEVICE).address,
        }
        self._picked_address = picked.address
        self._left_out: set[int] = set()  # rows whose changes had no room
        self.sampled = memory.buffer(rows * 4, Role.DEVICE).address

    @staticmethod
    def grids(vocabulary: int) -> tuple[Grid, Grid]:
        """Return the grids of the two dispatches."""
        rows = Per(Live.SELECTED)
        return (-(-vocabulary // _PART_IDS), rows, 1), (1, rows, 1)

    def dispatches(self, logits: FloatRows) -> list[Dispatch]:
        """Return what picks a token for each row of logits."""
        common = {
            **self._addresses,
            "logits": logits.address,
            "vocabulary": self._vocabulary,
            "stride": logits.stride,
        }
        more = {**common, "picked": self._picked_address, "sampled": self.sampled}
        first, second = self.grids(self._vocabulary)
        return [
            dispatch(Shader("candidates"), common, first, ["logits"], ["peaks"]),
            dispatch(Shader("draw"), more, second, ["logits", "peaks"], ["sampled"]),
        ]

    def write(self, draws: Sequence[Draw]) -> None:
        """Ask for the draws of a step."""
        first = 0
        self._left_out.clear()
        for row, draw in enumerate(draws):
            count = len(draw.adjustments)
            if first + count > _MOST_CHANGES:
                self._left_out.add(row)
                count = 0
            self._asked[row] = (
                _inverse(draw.temperature),
                draw.top_p,
                draw.min_p,
                draw.uniform,
                min(draw.top_k, self._vocabulary),
                first,
                count,
                0,
                0,
                0,
            )
            if count:
                self._changes[first : first + count] = sorted(draw.adjustments)
            first += count

    def drawn(self, rows: int) -> list[int | None]:
        """Return the tokens of a step that is done, by row; None where only the whole row can tell."""
        ids: list[int] = self._picked["id"][:rows].tolist()
        flags: list[int] = self._picked["flags"][:rows].tolist()
        return [
            None if flag & _TAIL or row in self._left_out else id
            for row, (id, flag) in enumerate(zip(ids, flags, strict=True))
        ]


def _inverse(temperature: float) -> float:
    """Return 1 / temperature as the host rounds it; 0 for the most likely token."""
    if temperature == 0:
        return 0.0
    with np.errstate(over="ignore", divide="ignore"):
        return float(np.float32(1) / np.float32(temperature))


def draw_bytes(vocabulary: int, rows: int) -> int:
    """Return the bytes of device memory that the draws of one step in flight take."""
    parts = -(-vocabulary // _PART_IDS)
    return rows * (parts * (_PART_BLOCKS * 4 + _MASS_BYTES) + 4)
