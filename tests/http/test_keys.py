"""The file of keys: what is read of it, when, and what is refused."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tierd.errors import SettingsError
from tierd.http import keys
from tierd.http.keys import Keys, digest_of, line_of, make_key, read_keys


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of alice's two keys and bob's one; it is looked at with every request."""
    monkeypatch.setattr(keys, "LOOK_S", 0.0)
    return written(tmp_path / "keys", line_of("alice", "a"), line_of("bob", "b"), line_of("alice", "c"))


def written(path: Path, *lines: str, mode: int = 0o600) -> Path:
    path.write_text("\n".join(lines) + "\n")
    path.chmod(mode)
    return path


def test_a_key_has_256_random_bits_and_its_line_their_hash() -> None:
    key = make_key()
    assert re.fullmatch(r"sk-tierd-[0-9a-f]{64}", key)
    assert key != make_key()
    assert line_of("alice", key) == f"alice {hashlib.sha256(key.encode()).hexdigest()}"


@pytest.mark.parametrize("name", ["", "a b", "-a", "ü", "a" * 65, "a\n"])
def test_names_are_words(name: str) -> None:
    with pytest.raises(SettingsError, match="the name of a key must be 1 to 64 letters"):
        line_of(name, "key")


def test_keys_are_known_by_name(file: Path) -> None:
    known = Keys(file)
    assert [known.name_of([key]) for key in (b"a", b"b", b"c", b"d", b"")] == [
        "alice", "bob", "alice", None, None
    ]  # fmt: skip
    assert known.name_of([b"d", b"b"]) == "bob"
    assert known.name_of([]) is None
    assert known.name_of([digest_of(b"a").hex().encode()]) is None


def test_a_file_has_comments_and_may_be_empty(tmp_path: Path) -> None:
    path = written(tmp_path / "keys", "# who", "", f"  a-b.c@d\t{'0F' * 32}  ", mode=0o640)
    assert read_keys(path) == [("a-b.c@d", b"\x0f" * 32)]
    assert Keys(written(path)).name_of([b""]) is None


@pytest.mark.parametrize(
    "line", ["alice", "alice secret", f"alice {'0' * 63}", f"alice {'0' * 65}", f"al ice {'0' * 64}",
             f"ü {'0' * 64}", f"alice {'g' * 64}", f"alice {'0' * 64} x"]
)  # fmt: skip
def test_a_line_that_is_none_is_named_and_not_repeated(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "keys", "# who", line)
    with pytest.raises(SettingsError) as caught:
        read_keys(path)
    assert str(caught.value) == (
        f"server.api_keys_file: {path}, line 2: must be a name and the SHA-256 of a key; "
        "`tierd key NAME` makes such a line"
    )


def test_lines_may_end_as_elsewhere(tmp_path: Path) -> None:
    path = written(tmp_path / "keys")
    path.write_bytes(f"# who\r\n{line_of('alice', 'a')}\r\n\r\n{line_of('bob', 'b')}\r".encode())
    assert [name for name, _ in read_keys(path)] == ["alice", "bob"]


def test_a_key_is_for_one_name(tmp_path: Path) -> None:
    path = written(tmp_path / "keys", line_of("alice", "a"), line_of("alice", "a"))
    assert Keys(path).name_of([b"a"]) == "alice"
    written(path, line_of("alice", "a"), "", line_of("bob", "a").upper().replace("BOB", "bob"))
    with pytest.raises(SettingsError) as caught:
        read_keys(path)
    assert str(caught.value) == (
        f"server.api_keys_file: {path}, line 3: bob has a key of alice's; a key is for one name"
    )


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o620])
def test_a_file_that_others_may_use_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(SettingsError, match=f"others may use {file}, mode {mode:o}; run: chmod 600"):
        Keys(file)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*/keys: No such file"):
        Keys(tmp_path / "keys")


def test_a_file_that_changes_is_read_again(file: Path) -> None:
    known = Keys(file)
    written(file, line_of("bob", "b"))
    assert [known.name_of([key]) for key in (b"a", b"b")] == [None, "bob"]
    file.unlink()
    written(file, line_of("eve", "b"))
    assert known.name_of([b"b"]) == "eve"


def test_while_a_file_is_no_good_the_keys_from_before_hold(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = Keys(file)
    written(file, "alice secret")
    assert [known.name_of([b"a"]) for _ in range(3)] == ["alice"] * 3
    file.unlink()
    assert known.name_of([b"a"]) == "alice"
    (wrong, gone) = (record.getMessage() for record in caplog.records)
    assert "line 1" in wrong
    assert "secret" not in wrong
    assert gone.endswith("No such file or directory; the keys from before hold")
    written(file, line_of("alice", "new"))
    assert [known.name_of([key]) for key in (b"a", b"new")] == [None, "alice"]


def test_a_file_is_looked_at_once_in_a_while(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "LOOK_S", 1000.0)
    known = Keys(file)
    file.unlink()
    written(file, line_of("eve", "b"))
    assert known.name_of([b"b"]) == "bob"
