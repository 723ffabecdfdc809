"""The log tells what was short when the bank drops a conversation, and metrics count it."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest

from manual_spill import ManualSpill
from tierd.cli.drops import note_drop
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.metrics import Metrics

POSITIONS = 6
ROW_BYTES = (64,)


class Watched:
    """A bank with memory for one conversation. files: for how many its files have room, None without any."""

    def __init__(self, folder: Path, files: int | None) -> None:
        self.metrics, self.gone = Metrics("0.0"), Gone()
        room = POSITIONS * ROW_BYTES[0]
        self.spill = None if files is None else ManualSpill(folder, limit=2 * room * files)
        self._bank = Bank(room, on_drop=partial(note_drop, self.gone, self.metrics), spill=self.spill)

    def put(self, token: int) -> None:
        """Keep a conversation of one token only."""
        entry = self._bank.open("m", "host", ROW_BYTES, POSITIONS, live=False)
        assert entry is not None
        self._bank.keep(entry, [token] * POSITIONS)

    def write(self) -> None:
        """Let it be written."""
        assert self.spill is not None
        self._bank.settle(self.spill.finish())

    def counted(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"tierd_kv_bank_{name}_total", {"model": "m"})


@pytest.mark.parametrize(
    ("files", "writes", "shortage"),
    [
        (None, 0, "its memory was needed, see kv.bank_mb and state.dir"),
        (0, 0, "its memory was needed and it has no file, see kv.bank_mb, state.max_mb and the disk"),
        (1, 2, "its file made room for others, see state.max_mb and the disk"),
    ],
)
def test_a_drop_says_what_was_short(
    files: int | None, writes: int, shortage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tierd")
    watched = Watched(tmp_path, files)
    for token in (1, 2, 3):
        watched.put(token)
        if token <= writes:
            watched.write()
    said = "model=m the bank dropped K/V of a parked conversation, 6 positions: "
    assert caplog.messages[0] == f"{said}{shortage}; what no page holds of it is computed again"
    assert watched.counted("dropped") == len(caplog.messages)
    assert watched.counted("dropped_positions") == POSITIONS * len(caplog.messages)
    assert watched.gone.find("m", "host", [1] * POSITIONS, 1) == POSITIONS
