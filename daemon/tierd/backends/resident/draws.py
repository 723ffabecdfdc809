"""How rows are drawn on the device: what goes up and what comes back; see `shaders/sampling.glsl`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tierd.backends.resident.assembly import Dispatch, Shader, dispatch
from tierd.backends.resident.grid import Grid, Live, Per
from tierd.backends.resident.memory import ModelMemory
from tierd.backends.resident.places import FloatRows
from tierd.backends.vkapi import Role
from tierd.core import ADJUSTMENT, Draw, TokenLogprobs, TokenMask

# Bits of what is asked for and of what comes back.
_WANT_LSE, _TAIL = 1, 1
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
_PICKED = np.dtype(
    [
        ("id", np.int32),
        ("flags", np.uint32),
        ("logit", np.float32),
        ("lse", np.float32),
        ("candidates", [("logit", np.float32), ("id", np.uint32)], (_CANDIDATES,)),
    ]
)
_NOBODY = 0xFFFFFFFF
_MASS_BYTES = 16
# Words of one row's mask are a multiple of this.
_MASK_WORDS = 4


class Draws:
    """The draws of one step in flight. sampled: address of the ids, for the next step to feed."""

    def __init__(self, memory: ModelMemory, vocabulary: int, rows: int) -> None:
        """rows: most whose logits are computed at once."""
        parts = -(-vocabulary // _PART_IDS)
        self._vocabulary = vocabulary
        asked = memory.buffer(rows * _DRAW.itemsize, Role.STEP)
        changes = memory.buffer(_MOST_CHANGES * ADJUSTMENT.itemsize, Role.STEP)
        words = -(-vocabulary // (32 * _MASK_WORDS)) * _MASK_WORDS
        masks = memory.buffer(rows * words * 4, Role.STEP)
        picked = memory.buffer(picked_bytes(rows), Role.READBACK)
        assert asked.view is not None
        assert changes.view is not None
        assert masks.view is not None
        assert picked.view is not None
        self._asked = np.frombuffer(asked.view, _DRAW)
        self._changes = np.frombuffer(changes.view, ADJUSTMENT)
        self._masks = np.frombuffer(masks.view, np.uint32).reshape(rows, words)
        self._masks_address = masks.address
        self._masked: list[TokenMask | None] = [None] * rows  # whose words are there
        self._picked = np.frombuffer(picked.view, _PICKED)
        self._addresses = {
            "draws": asked.address,
            "changes": changes.address,
            "peaks": memory.buffer(rows * parts * _PART_BLOCKS * 4, Role.DEVICE).address,
            "masses": memory.buffer(rows * parts * _MASS_BYTES, Role.DEVICE).address,
        }
        self._picked_address = picked.address
        self._draws: Sequence[Draw] = ()
        self._left_out: set[int] = set()  # rows whose changes had no room
        self.sampled = memory.buffer(rows * 4, Role.DEVICE).address

    @staticmethod
    def grids(vocabulary: int) -> tuple[Grid, Grid]:
        """Return the grids of the two dispatches."""
        rows = Per(Live.SCORED)
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

    def write(self, draws: Sequence[Draw]) -> list[int]:
        """Ask for the draws of a step; return the rows whose logits the host will need, whatever is drawn."""
        self._draws = draws
        self._left_out.clear()
        needed = []
        first = 0
        for row, draw in enumerate(draws):
            count = draw.adjustments.size
            if first + count > _MOST_CHANGES:
                self._left_out.add(row)
                count = 0
            scored = draw.top_logprobs is not None and row not in self._left_out
            told = scored and _tells_logprobs(draw)
            if row in self._left_out or scored != told:
                needed.append(row)
            self._asked[row] = (
                _inverse(draw.temperature),
                draw.top_p,
                draw.min_p,
                draw.uniform,
                min(draw.top_k, self._vocabulary),
                first,
                count,
                _WANT_LSE if told else 0,
                self._put_mask(row, draw.allowed),
                0,
            )
            if count:
                self._changes[first : first + count] = draw.adjustments
            first += count
        return needed

    def drawn(self) -> list[int | None]:
        """Return the tokens of a step that is done, by row; None where only the whole row can tell."""
        count = len(self._draws)
        ids: list[int] = self._picked["id"][:count].tolist()
        flags: list[int] = self._picked["flags"][:count].tolist()
        return [
            None if flag & _TAIL or row in self._left_out or not _may_be(id, draw) else id
            for row, (id, flag, draw) in enumerate(zip(ids, flags, self._draws, strict=True))
        ]

    def logprobs(self, row: int) -> TokenLogprobs:
        """Return what a row's Draw asks for, by its candidates; not of a row that `write` returned."""
        picked, top = self._picked[row], self._draws[row].top_logprobs
        total = float(picked["lse"])
        best = picked["candidates"][:top]
        best = best[best["id"] != _NOBODY]
        likely = zip(best["id"].tolist(), best["logit"].tolist(), strict=True)
        return TokenLogprobs(
            int(picked["id"]),
            float(picked["logit"]) - total,
            tuple((id, logit - total) for id, logit in likely),
        )

    def _put_mask(self, row: int, mask: TokenMask | None) -> int:
        """Let a row's mask be where shaders find it; return its address, 0 for none."""
        if mask is None:
            return 0
        if self._masked[row] is not mask:
            self._masks[row, : mask.words.size] = mask.words
            self._masked[row] = mask
        return self._masks_address + row * self._masks.strides[0]


def _tells_logprobs(draw: Draw) -> bool:
    """Whether log-probabilities are told by the candidates: their logits are as they are drawn from."""
    top = draw.top_logprobs or 0
    return top == 0 or (top <= _CANDIDATES and not draw.changes_logits)


def _may_be(id: int, draw: Draw) -> bool:
    """Whether a draw may fall on an id. It does on others where all that is allowed is -infinity or NaN."""
    return draw.allowed is None or id in draw.allowed


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


def picked_bytes(rows: int) -> int:
    """Return the bytes that come back of the draws of one step in flight."""
    return rows * _PICKED.itemsize
