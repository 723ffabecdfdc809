from __future__ import annotations

import os
import stat
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from tierd.errors import SettingsError
from tierd.kv.bank import Bank, Banked
from tierd.kv.spill import Rows, Spill, SpillDone, SpillJob, carry_out, header_of, open_spill
from tierd.settings import StateSettings

HEADER = header_of({"model": "m", "positions": 3})
PATIENCE_S = 30


def some_rows() -> tuple[Rows, ...]:
    """As an entry has them that has more positions than rows: slices of wider arrays' starts."""
    random = np.random.default_rng(1)
    return tuple(random.integers(0, 256, (5, count), np.uint8)[:3] for count in (8, 24))


def writing(path: Path, rows: tuple[Rows, ...], header: bytes = HEADER) -> SpillJob:
    return SpillJob(path=path, header=header, rows=rows, reads=False)


def reading(path: Path, header: bytes = HEADER) -> SpillJob:
    return SpillJob(path=path, header=header, rows=tuple(map(np.zeros_like, some_rows())), reads=True)


@pytest.fixture
def inbox() -> SimpleQueue[SpillDone]:
    return SimpleQueue()


@pytest.fixture
def spill(tmp_path: Path, inbox: SimpleQueue[SpillDone]) -> Iterator[Spill]:
    spill = open_spill(StateSettings(dir=tmp_path / "state"), inbox.put)
    assert spill is not None
    yield spill
    assert spill.close(PATIENCE_S)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with rows."""
    path = tmp_path / "0.rows"
    job = writing(path, some_rows())
    assert carry_out(job).problem == ""
    assert path.stat().st_size == job.size
    return path


def test_rows_come_back(file: Path) -> None:
    job = reading(file)
    assert carry_out(job).problem == ""
    for read, written in zip(job.rows, some_rows(), strict=True):
        assert np.array_equal(read, written)


def test_more_than_a_slice_comes_back(tmp_path: Path) -> None:
    rows = (np.random.default_rng(2).integers(0, 256, (3, 3 << 20), np.uint8),)
    path = tmp_path / "0.rows"
    assert carry_out(writing(path, rows)).problem == ""
    job = SpillJob(path=path, header=HEADER, rows=(np.zeros_like(rows[0]),), reads=True)
    assert carry_out(job).problem == ""
    assert np.array_equal(job.rows[0], rows[0])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def replace(path: Path) -> None:
    path.unlink()
    other = header_of({"model": "n", "positions": 3})
    assert carry_out(writing(path, some_rows(), other)).problem == ""


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (cut, "it has another size than it was written with"),
        (lengthen, "it has another size than it was written with"),
        (replace, "it holds other rows than those that were written"),
        (Path.unlink, "No such file or directory"),
    ],
)
def test_a_cut_foreign_or_missing_file_is_not_believed(
    file: Path, harm: Callable[[Path], None], problem: str
) -> None:
    harm(file)
    assert carry_out(reading(file)).problem == problem


def test_every_byte_counts(file: Path) -> None:
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert carry_out(reading(file)).problem


def test_a_link_is_not_followed(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "1.rows"
    link.symlink_to(file)
    assert carry_out(reading(link)).problem
    assert carry_out(writing(link, some_rows())).problem == "File exists"
    assert carry_out(reading(file)).problem == ""


def test_of_what_cannot_be_written_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __iter__(self) -> Iterator[Rows]:
            yield some_rows()[0]
            raise OSError(5, "Input/output error")

    path = tmp_path / "0.rows"
    job = writing(path, some_rows())
    monkeypatch.setattr("tierd.kv.spill._slices", lambda rows: (part.data for part in Broken()))
    done = carry_out(job)
    assert (done.problem, done.full) == ("Input/output error", False)
    assert not path.exists()


def test_some_of_the_disk_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = writing(tmp_path / "0.rows", some_rows())
    disk = namedtuple("disk", "f_bavail f_frsize f_blocks")
    monkeypatch.setattr(os, "statvfs", lambda path: disk(5 + job.size - 1, 1, 100))
    done = carry_out(job)
    assert (done.problem, done.full) == ("No space left on device", True)
    assert not job.path.exists()
    monkeypatch.setattr(os, "statvfs", lambda path: disk(5 + job.size, 1, 100))
    assert carry_out(job).problem == ""


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


def test_the_folder_is_private_and_empty_before_and_after(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "bank"
    folder.mkdir(0o755, parents=True)
    (folder / "7.rows").write_bytes(b"of an earlier run")
    (folder / "notes").write_bytes(b"of somebody else")
    inbox: SimpleQueue[SpillDone] = SimpleQueue()
    spill = open_spill(StateSettings(dir=tmp_path / "state"), inbox.put)
    assert spill is not None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} == {"lock", "notes"}
    path = spill.new_path()
    spill.start(writing(path, some_rows()))
    inbox.get(timeout=PATIENCE_S)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert spill.close(PATIENCE_S)
    assert {path.name for path in folder.iterdir()} == {"lock", "notes"}


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
