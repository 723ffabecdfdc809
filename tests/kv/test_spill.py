from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from tierd.errors import SettingsError
from tierd.kv.bank import Bank, Banked
from tierd.kv.openings import pack
from tierd.kv.row_files import Header, Rows
from tierd.kv.spill import Spill, SpillDone, SpillJob, carry_out, open_spill
from tierd.settings import StateSettings

HEADER = Header(model="m", origin="host", row_bytes=(8, 24), tokens=pack([1, 2, 3]), used=1)
PATIENCE_S = 30


def some_rows() -> tuple[Rows, ...]:
    """As an entry has them that has more positions than rows: slices of wider arrays' starts."""
    random = np.random.default_rng(1)
    return tuple(random.integers(0, 256, (5, count), np.uint8)[:3] for count in (8, 24))


def writing(path: Path, rows: tuple[Rows, ...], header: Header = HEADER) -> SpillJob:
    return SpillJob(path=path, header=header.pack(), rows=rows, reads=False)


def reading(path: Path) -> SpillJob:
    return SpillJob(path=path, header=HEADER.pack(), rows=tuple(map(np.zeros_like, some_rows())), reads=True)


@pytest.fixture
def inbox() -> SimpleQueue[SpillDone]:
    return SimpleQueue()


@pytest.fixture
def spill(tmp_path: Path, inbox: SimpleQueue[SpillDone]) -> Iterator[Spill]:
    spill = open_spill(StateSettings(dir=tmp_path / "state"), inbox.put)
    assert spill is not None
    yield spill
    assert spill.close(PATIENCE_S)


def test_without_a_folder_there_is_no_spill() -> None:
    assert open_spill(StateSettings(), lambda done: None) is None


def test_the_setting_bounds_the_files(tmp_path: Path) -> None:
    spill = open_spill(StateSettings(dir=tmp_path, max_mb=3), lambda done: None)
    assert spill is not None
    assert spill.limit == 3 << 20
    assert spill.close(PATIENCE_S)


def test_the_thread_posts_what_is_done(spill: Spill, inbox: SimpleQueue[SpillDone]) -> None:
    path = spill.new_path()
    assert spill.new_path() != path
    write, read, late = writing(path, some_rows()), reading(path), reading(path)
    spill.start(write)
    spill.start(read)
    spill.remove(path)
    spill.start(late)
    done = [inbox.get(timeout=PATIENCE_S) for _ in range(3)]
    assert [one.job for one in done] == [write, read, late]
    assert [one.problem for one in done] == ["", "", "No such file or directory"]
    assert np.array_equal(read.rows[1], some_rows()[1])


def test_the_folder_is_private_and_keeps_what_is_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state" / "bank"
    folder.mkdir(0o755, parents=True)
    assert carry_out(writing(folder / "7.rows", some_rows())).problem == ""
    (folder / "8.rows").write_bytes(b"tierd rows 1\n of an earlier tierd")
    (folder / "9.draft").write_bytes(b"of one that was killed")
    (folder / "notes").write_bytes(b"of somebody else")
    inbox: SimpleQueue[SpillDone] = SimpleQueue()
    spill = open_spill(StateSettings(dir=tmp_path / "state"), inbox.put)
    assert spill is not None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} == {"lock", "notes", "7.rows"}
    assert spill.found == {folder / "7.rows": HEADER}
    assert [record.getMessage() for record in caplog.records] == [
        f"state.dir: ignored and removed {folder / '8.rows'}: it is of another version"
    ]
    path = spill.new_path()
    assert path.name == "8.rows"
    spill.start(writing(path, some_rows()))
    inbox.get(timeout=PATIENCE_S)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert spill.close(PATIENCE_S)
    assert {path.name for path in folder.iterdir()} == {"lock", "notes", "7.rows", "8.rows"}


def test_two_cannot_share_a_folder(spill: Spill, tmp_path: Path) -> None:
    state = StateSettings(dir=tmp_path / "state")
    with pytest.raises(SettingsError, match=r"^state\.dir: another tierd uses .*/state/bank; choose another"):
        open_spill(state, lambda done: None)


def test_a_folder_is_free_again_once_it_is_closed(tmp_path: Path) -> None:
    for _ in range(2):
        spill = open_spill(StateSettings(dir=tmp_path), lambda done: None)
        assert spill is not None
        assert spill.close(PATIENCE_S)


def test_what_cannot_be_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(SettingsError, match=r"^state\.dir: cannot use .*/state/bank: Not a directory$"):
        open_spill(StateSettings(dir=tmp_path / "state"), lambda done: None)


def test_a_bank_writes_and_reads_through_the_thread(spill: Spill, inbox: SimpleQueue[SpillDone]) -> None:
    bank = Bank(1000, spill=spill)
    entries: list[Banked] = []
    for token in range(6):
        entry = bank.open("m", "host", (4, 36), 10, live=False)
        assert entry is not None
        for layer in entry.layers:
            layer[:] = token
        bank.keep(entry, [token] * 10)
        entries.append(entry)
        if bank.used > 500:
            assert bank.settle(inbox.get(timeout=PATIENCE_S)).path is not None
    assert bank.dropped == 0
    assert not entries[0].in_memory
    assert bank.find("m", "host", [0, 0]) == (entries[0], 2)
    told: list[bool] = []
    bank.fetch(entries[0], told.append)
    while not told:
        bank.settle(inbox.get(timeout=PATIENCE_S))
    assert told == [True]
    assert [int(layer.max()) for layer in entries[0].layers] == [0, 0]
