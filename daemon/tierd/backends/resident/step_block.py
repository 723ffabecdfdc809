"""What changes with every step, in memory that the host writes and the device reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tierd.backends.resident.grid import STRIDE, Grids
from tierd.backends.vkapi import Buffer
from tierd.core import Batch
from tierd.errors import ExecutorError

# Two words of numbers and two unused ones come first; then four words a row.
_HEADER_WORDS = 4
_ROW_WORDS = 4
# Parts of the block begin at multiples of so many words.
_ALIGNMENT_WORDS = 16


class StepBlock:
    """A step's rows (see `shaders/step.glsl`), those of them that are selected, and all group counts.

    block, selection: addresses of the first two.
    """

    def __init__(self, buffer: Buffer, *, max_rows: int, grids: Grids) -> None:
        """buffer: of `block_bytes`, seen by the host."""
        assert buffer.view is not None
        words = np.frombuffer(buffer.view, np.uint32)
        rows_end = _HEADER_WORDS + max_rows * _ROW_WORDS
        selection, groups = _starts(max_rows)
        self._header = words[:_HEADER_WORDS]
        self._rows = words[_HEADER_WORDS:rows_end].view(np.int32).reshape(max_rows, _ROW_WORDS)
        self._selection = words[selection : selection + max_rows]
        self._groups = words[groups : groups + len(grids) * STRIDE // 4].reshape(len(grids), STRIDE // 4)
        self._grids = grids
        self.buffer = buffer
        self.block = buffer.address
        self.selection = buffer.address + 4 * selection
        self._groups_at = 4 * groups

    def groups_at(self, grid: int) -> int:
        """Return the offset of a grid's groups in the buffer."""
        return self._groups_at + grid * STRIDE

    def select(self, selection: Sequence[int]) -> None:
        """Select rows, whose logits are wanted, for a step that feeds none."""
        self._header[1] = len(selection)
        self._selection[: len(selection)] = selection
        self._groups[:, :3] = self._grids.groups(0, len(selection), len(selection), 1)

    def write(self, rows: npt.NDArray[np.int32], selection: Sequence[int], scored: int, splits: int) -> None:
        """Set the block for a step.

        rows: (token, position, region) of each, shape (rows, 3). selection: those of which something is
        wanted; of the first `scored` of them that is logits.
        """
        self._header[:2] = len(rows), len(selection)
        self._rows[: len(rows), :3] = rows
        self._selection[: len(selection)] = selection
        self._groups[:, :3] = self._grids.groups(len(rows), len(selection), scored, splits)


def block_bytes(*, max_rows: int, grids: Grids) -> int:
    """Return the bytes of a block."""
    return 4 * _starts(max_rows)[1] + len(grids) * STRIDE


def _starts(max_rows: int) -> tuple[int, int]:
    """Return the words at which the selection and the group counts begin."""
    selection = _aligned(_HEADER_WORDS + max_rows * _ROW_WORDS)
    return selection, _aligned(selection + max_rows)


def _aligned(words: int) -> int:
    return -(-words // _ALIGNMENT_WORDS) * _ALIGNMENT_WORDS


def rows_of(
    batch: Batch, *, positions: int, regions: int, token_ids: int, drawn: int
) -> npt.NDArray[np.int32]:
    """Return the (token, position, region) of a batch's rows, shape (rows, 3).

    positions: of a region. drawn: rows that the batch before draws tokens for.
    Raises ExecutorError for what would lead the kernels astray.
    """
    rows = np.empty((batch.rows, 3), np.int32)
    at = 0
    for chunk in batch.chunks:
        count = len(chunk.tokens)
        if len(chunk.pages) != 1 or not 0 <= chunk.pages[0] < regions:
            raise ExecutorError(f"a chunk lies in regions {list(chunk.pages)}; one of {regions} is needed")
        if chunk.start < 0 or chunk.start + count > positions:
            raise ExecutorError(
                f"positions {chunk.start} to {chunk.start + count - 1} do not lie in a region of {positions}"
            )
        part = rows[at : at + count]
        part[:, 0] = chunk.tokens
        part[:, 1] = np.arange(chunk.start, chunk.start + count)
        part[:, 2] = chunk.pages[0]
        at += count
    lowest, highest = int(rows[:, 0].min()), int(rows[:, 0].max())
    if lowest < -drawn or highest >= token_ids:
        raise ExecutorError(f"token ids {lowest} to {highest} do not lie in -{drawn} to {token_ids - 1}")
    return rows
