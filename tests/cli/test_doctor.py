"""`tierd doctor` on boxes that can serve as they are asked to, and on some that cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from no_gpu import NO_DRIVER, NO_GPU
from tierd.cli import main
from tiny import write_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("doctor") / "tiny.gguf", head_size=32, context=4096)


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NO_GPU.items():
        monkeypatch.setenv(name, value)


def configure(folder: Path, model: Path, sections: str = "", table: str = "") -> str:
    file = folder / "doctor.toml"
    file.write_text(f"{sections}\n[[models]]\nid = 'tiny'\npath = '{model}'\nstreams = 2\n{table}\n")
    return str(file)


def findings(
    capsys: pytest.CaptureFixture[str], code: int, *arguments: str
) -> tuple[dict[str, dict[str, str]], str]:
    """Return what is found, by subject, and the line on standard error."""
    assert main(["doctor", "--json", *arguments]) == code
    captured = capsys.readouterr()
    found = {each.pop("subject"): each for each in json.loads(captured.out)}
    return found, captured.err


@pytest.mark.usefixtures("_no_gpu")
def test_a_box_without_a_gpu_serves_where_none_is_required(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, error = findings(capsys, 0, "--config", configure(tmp_path, tiny))
    assert error == ""
    assert {each["verdict"] for each in found.values()} <= {"ok", "note"}
    assert found["processor"]["text"].startswith("kernels of level ")
    assert found["loader"]["verdict"] == "ok"
    assert found["drivers"] == {
        "verdict": "note",
        "text": "VK_DRIVER_FILES names /nonexistent.json, where there is no driver",
        "remedy": "unset VK_DRIVER_FILES",
    }
    assert found["witness"]["text"] == found["devices"]["text"] == NO_DRIVER
    assert found["model tiny"]["text"] == f"runs on the CPU: {NO_DRIVER}"


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("place", ["for all", "for one"])
def test_a_required_tier_that_cannot_be_reached_exits_with_3(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    required = "require = 'resident'"
    sections, table = (f"gpu.{required}", "") if place == "for all" else ("", required)
    found, error = findings(capsys, 3, "--config", configure(tmp_path, tiny, sections, table))
    assert error.startswith("tierd: drivers: VK_DRIVER_FILES names ")
    for subject in ("drivers", "devices", "witness", "model tiny"):
        assert found[subject]["verdict"] == "problem"
    assert found["rails"]["verdict"] in ("ok", "note")


def test_a_required_tier_that_is_reached_is_fine(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = "[gpu]\nallow_software = true\nrequire = 'resident'\nvram_limit_mb = {}"
    found, error = findings(capsys, 0, "--config", configure(tmp_path, tiny, sections.format(0)))
    assert error == ""
    assert found["model tiny"] == {"verdict": "ok", "text": "runs as gpu:resident", "remedy": ""}
    assert found["witness"]["text"].endswith(" MiB for models")
    assert any(each["text"].endswith("it is the one that is used") for each in found.values())

    strict = configure(tmp_path, tiny, sections.format(1), "context = 4096\nctx_strict = true\nregions = 8")
    found, error = findings(capsys, 3, "--config", strict)
    assert error.startswith("tierd: model tiny: it must be resident on the GPU, as `require` demands, but ")
    assert found["witness"]["verdict"] == "ok"


@pytest.mark.usefixtures("_no_gpu")
def test_what_serving_would_end_with_is_what_the_doctor_exits_with(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    broken = configure(tmp_path, tiny, f"state.dir = '{tmp_path}/file'")
    found, error = findings(capsys, 2, "--config", broken)
    assert found["state"]["verdict"] == "problem"
    assert error.startswith(f"tierd: state: state.dir cannot be used: {tmp_path}/file is no folder")

    found, error = findings(capsys, 4, "--model", str(tmp_path / "missing.gguf"))
    assert "missing.gguf cannot be opened" in error

    found, error = findings(
        capsys,
        4,
        "--config",
        configure(tmp_path, tiny, "kv.memory_mb = 1", "context = 4096\nkv_dtype = 'f32'"),
    )
    assert "needs" in error

    found, error = findings(capsys, 2, "--config", configure(tmp_path, tiny, table="context = 4097"))
    assert "context = 4097 is more than the 4096 positions" in found["model tiny"]["text"]

    assert main(["doctor", "--config", str(tmp_path / "missing.toml")]) == 2


@pytest.mark.usefixtures("_no_gpu")
def test_people_get_a_table_with_the_remedies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["ok", "memory"] in [line[:2] for line in lines]
    assert ["->", "unset", "VK_DRIVER_FILES"] in lines
