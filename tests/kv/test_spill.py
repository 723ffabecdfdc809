from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from tierd.errors import SettingsError
from tierd.kv import row_files
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
    folder.mkdir(0o700, parents=True)
    folder.parent.chmod(0o700)
    assert carry_out(writing(folder / "7.rows", some_rows())).problem == ""
    (folder / "11.rows").write_bytes(b"tierd rows 1\n of an earlier tierd")
    (folder / "8.rows").mkdir()
    (folder / "9.draft").write_bytes(b"of one that was killed")
    (folder / "notes").write_bytes(b"of somebody else")
    inbox: SimpleQueue[SpillDone] = SimpleQueue()
    spill = open_spill(StateSettings(dir=tmp_path / "state"), inbox.put)
    assert spill is not None
    assert {path.name for path in folder.iterdir()} == {"lock", "notes", "7.rows", "8.rows"}
    assert spill.found == {folder / "7.rows": HEADER}
    assert {record.getMessage() for record in caplog.records} == {
        f"state.dir: ignored (cannot remove {folder / '8.rows'}: Is a directory): it is no file",
        f"state.dir: ignored and removed {folder / '11.rows'}: it is of another version",
    }
    path = spill.new_path()
    assert path.name == "12.rows"
    spill.start(writing(path, some_rows()))
    inbox.get(timeout=PATIENCE_S)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert spill.close(PATIENCE_S)
    assert {path.name for path in folder.iterdir()} == {"lock", "notes", "7.rows", "8.rows", "12.rows"}


def test_folders_are_made_for_one_user(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        spill = open_spill(StateSettings(dir=tmp_path / "deep" / "state"), lambda done: None)
    finally:
        os.umask(before)
    assert spill is not None
    assert spill.close(PATIENCE_S)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "deep").rglob("*")}
    assert modes == {"state": 0o700, "bank": 0o700, "lock": 0o600}


@pytest.mark.parametrize("mode", [0o701, 0o740, 0o777])
@pytest.mark.parametrize("name", ["state", "state/bank"])
def test_a_folder_that_others_may_use_is_refused(tmp_path: Path, name: str, mode: int) -> None:
    folder = tmp_path / "state" / "bank"
    folder.mkdir(0o700, parents=True)
    folder.parent.chmod(0o700)
    (tmp_path / name).chmod(mode)
    with pytest.raises(SettingsError) as refused:
        open_spill(StateSettings(dir=tmp_path / "state"), lambda done: None)
    place = tmp_path / name
    assert str(refused.value) == f"state.dir: others may use {place}, mode {mode:o}; run: chmod 700 {place}"
    assert stat.S_IMODE(place.stat().st_mode) == mode


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = tmp_path.stat().st_uid + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(SettingsError) as refused:
        open_spill(StateSettings(dir=tmp_path), lambda done: None)
    assert str(refused.value) == (
        f"state.dir: {tmp_path} belongs to another user; choose another one, or run: chown {user} {tmp_path}"
    )


def test_no_link_is_followed_but_that_of_the_folder_itself(tmp_path: Path) -> None:
    for name in ("real", "elsewhere"):
        (tmp_path / name).mkdir(0o700)
    state = StateSettings(dir=tmp_path / "state")
    (tmp_path / "state").symlink_to("real")
    (tmp_path / "real" / "bank").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match=r"^state\.dir: .*/state/bank is a link; remove it, or move"):
        open_spill(state, lambda done: None)
    (tmp_path / "real" / "bank").unlink()
    (tmp_path / "real" / "bank").mkdir(0o700)
    (tmp_path / "real" / "bank" / "lock").symlink_to(tmp_path / "elsewhere" / "lock")
    with pytest.raises(SettingsError, match=r"^state\.dir: cannot use .*/state/bank/lock: Too many levels"):
        open_spill(state, lambda done: None)
    (tmp_path / "real" / "bank" / "lock").unlink()
    spill = open_spill(state, lambda done: None)
    assert spill is not None
    (tmp_path / "real" / "bank" / "5.rows").symlink_to(tmp_path / "elsewhere" / "5.rows")
    assert carry_out(writing(tmp_path / "real" / "bank" / "5.rows", some_rows())).problem == ""
    assert spill.close(PATIENCE_S)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_is_removed_is_told_once_the_disk_knows(
    spill: Spill, inbox: SimpleQueue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = spill.new_path(), list[str]()
    monkeypatch.setattr(row_files, "sync_folder", lambda folder: said.append(f"{path.exists()}"))
    spill.start(writing(path, some_rows()))
    spill.remove(path)
    spill.clear(said.append)
    written, cleared = (inbox.get(timeout=PATIENCE_S) for _ in range(2))
    assert written.problem == ""
    assert said == ["True", "False"]  # as the file is written, and as it is gone
    cleared.then(cleared.problem)
    assert said == ["True", "False", ""]


def test_what_cannot_be_removed_is_told(spill: Spill, inbox: SimpleQueue[Any], tmp_path: Path) -> None:
    path = spill.new_path()
    path.mkdir()
    for problem in (f"cannot remove {path}: Is a directory", ""):
        if problem:
            spill.remove(path)
        spill.clear(str)
        assert inbox.get(timeout=PATIENCE_S).problem == problem


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
    with pytest.raises(SettingsError, match=r"^state\.dir: cannot use .*/state: Not a directory$"):
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
