from __future__ import annotations

import os
import stat
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tierd.kv import row_files
from tierd.kv.openings import pack
from tierd.kv.row_files import Header, RowFileError, Rows, read, read_header, write

TOKENS = [7, 0, 1 << 31]
HEADER = Header(model="m", origin="host", row_bytes=(8, 24), tokens=pack(TOKENS), used=125)


def some_rows() -> tuple[Rows, ...]:
    """As an entry has them that has more positions than rows: slices of wider arrays' starts."""
    random = np.random.default_rng(1)
    return tuple(random.integers(0, 256, (5, count), np.uint8)[:3] for count in HEADER.row_bytes)


def blank() -> tuple[Rows, ...]:
    return tuple(map(np.zeros_like, some_rows()))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "0.rows"
    write(path, HEADER.pack(), some_rows())
    return path


def test_what_is_written_comes_back(file: Path) -> None:
    assert read_header(file) == HEADER
    assert HEADER.positions == len(TOKENS)
    assert HEADER.file_bytes == file.stat().st_size == row_files.size_of(HEADER.pack(), some_rows())
    rows = blank()
    read(file, HEADER.pack(), rows)
    for got, written in zip(rows, some_rows(), strict=True):
        assert np.array_equal(got, written)


def test_only_its_owner_may_look_into_it(file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_more_than_a_slice_comes_back(tmp_path: Path) -> None:
    rows = (np.random.default_rng(2).integers(0, 256, (3, 3 << 20), np.uint8),)
    write(tmp_path / "0.rows", b"header", rows)
    got = (np.zeros_like(rows[0]),)
    read(tmp_path / "0.rows", b"header", got)
    assert np.array_equal(got[0], rows[0])


def test_every_byte_counts(file: Path) -> None:
    """Whichever is flipped: the header's are noticed by it alone."""
    whole, header = file.read_bytes(), HEADER.pack()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        if at < len(header):
            with pytest.raises(RowFileError):
                read_header(file)
        else:
            assert read_header(file) == HEADER
        with pytest.raises(RowFileError):
            read(file, header, blank())


def test_every_length_counts(file: Path) -> None:
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(RowFileError):
            read_header(file)
        with pytest.raises(RowFileError, match="another size"):
            read(file, HEADER.pack(), blank())
    file.write_bytes(whole + b"x")
    with pytest.raises(RowFileError, match="another size than its header says"):
        read_header(file)


def forged(**other: object) -> bytes:
    """Return a header with a good checksum that says something else."""
    line = HEADER.pack().split(b"\n")[1]
    for name, value in other.items():
        before = b'"%s": ' % name.encode()
        at = line.index(before) + len(before)
        stop = min(end for end in (line.find(b', "', at), len(line) - 1) if end >= 0)
        line = line[:at] + str(value).encode() + line[stop:]
    content = b"tierd rows 3\n" + line + b"\n" + HEADER.tokens
    return content + row_files.zlib.crc32(content).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"tierd rows 1\n" + HEADER.pack()[13:], "it is of another version"),
        (b"tierd rows 4\n" + HEADER.pack()[13:], "it is of another version"),
        (b"GGUF", "it holds no rows"),
        (b"", "it holds no rows"),
        (b"tierd rows 3\n" + b"[" * (1 << 17), "its header is damaged"),
        (b"tierd rows 3\n[]\n", "its header is damaged"),
        (forged(positions=-1), "its header is damaged"),
        (forged(positions=0), "its header is damaged"),
        (forged(positions=1 << 70), "its header is damaged"),
        (forged(row_bytes="[]"), "its header is damaged"),
        (forged(row_bytes="[8, -24]"), "its header is damaged"),
        (forged(row_bytes="[Infinity]"), "its header is damaged"),
        (forged(row_bytes=24), "its header is damaged"),
        (forged(used='"now"'), "its header is damaged"),
        (forged(row_bytes=f"[8, {1 << 60}]"), "it has another size than its header says"),
    ],
)
def test_what_is_no_sound_header_is_not_believed(tmp_path: Path, header: bytes, problem: str) -> None:
    path = tmp_path / "0.rows"
    write(path, header, some_rows())
    with pytest.raises(RowFileError, match=f"^{problem}$"):
        read_header(path)


def test_forged_headers_are_sound_but_for_what_they_say(tmp_path: Path) -> None:
    assert forged() == HEADER.pack()
    path = tmp_path / "0.rows"
    write(path, forged(used=325), some_rows())
    assert read_header(path).used == 325


def test_a_file_with_other_rows_is_not_read(file: Path) -> None:
    other = Header(model="n", origin="host", row_bytes=(8, 24), tokens=pack(TOKENS), used=125)
    write(file, other.pack(), some_rows())
    with pytest.raises(RowFileError, match="it holds other rows than those that were written"):
        read(file, HEADER.pack(), blank())


def test_a_link_is_not_followed(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "1.rows"
    link.symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"):
        read(link, HEADER.pack(), blank())
    with pytest.raises(OSError, match="symbolic links"):
        read_header(link)
    draft = tmp_path / "2.draft"
    draft.symlink_to(file)
    with pytest.raises(FileExistsError):
        write(tmp_path / "2.rows", HEADER.pack(), some_rows())
    read(file, HEADER.pack(), blank())


def test_of_what_cannot_be_written_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(rows: object) -> Iterator[memoryview]:
        yield some_rows()[0].reshape(-1).data
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(row_files, "_slices", broken)
    with pytest.raises(OSError, match="Input/output error"):
        write(tmp_path / "0.rows", HEADER.pack(), some_rows())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_file_has_its_name_once_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whatever ends the process before that leaves only a draft, or nothing."""
    path, seen = tmp_path / "0.rows", []

    def dies(*_: object) -> None:
        seen.append(sorted(each.name for each in tmp_path.iterdir()))
        raise KeyboardInterrupt

    owner: object = os if call == "fsync" else Path
    monkeypatch.setattr(owner, call, dies)
    with pytest.raises(KeyboardInterrupt):
        write(path, HEADER.pack(), some_rows())
    assert seen == [["0.draft"]]


def test_some_of_the_disk_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = HEADER.file_bytes
    disk = namedtuple("disk", "f_bavail f_frsize f_blocks")
    monkeypatch.setattr(os, "statvfs", lambda path: disk(5 + size - 1, 1, 100))
    with pytest.raises(OSError, match="No space left on device"):
        write(tmp_path / "0.rows", HEADER.pack(), some_rows())
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "statvfs", lambda path: disk(5 + size, 1, 100))
    write(tmp_path / "0.rows", HEADER.pack(), some_rows())


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "1.rows", tmp_path / "2.rows"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder):
        with pytest.raises(RowFileError, match="it is no file"):
            read_header(path)
