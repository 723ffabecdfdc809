"""`tierd doctor` on boxes that can serve as they are asked to, and on some that cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kompute import needs_kompute
from no_gpu import NO_DRIVER, NO_GPU
from tierd.cli import main
from tierd.cli.checks.aside import Aside
from tierd.cli.checks.finding import Finding
from tierd.errors import DeviceTimeoutError
from tiny import write_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("doctor") / "tiny.gguf", head_size=32, ff=96, context=4096)


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


def test_what_serving_would_end_with_is_what_the_doctor_exits_with(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    off = "gpu.mode = 'off'"
    broken = configure(tmp_path, tiny, f"{off}\nstate.dir = '{tmp_path}/file'")
    found, error = findings(capsys, 2, "--config", broken)
    assert found["GPU"] == {"verdict": "ok", "text": "gpu.mode is off: none is looked at", "remedy": ""}
    assert found["state"]["verdict"] == "problem"
    assert error.startswith(f"tierd: state: state.dir cannot be used: {tmp_path}/file is no folder")

    missing = ("--model", str(tmp_path / "missing.gguf"))
    found, error = findings(capsys, 4, "--config", configure(tmp_path, tiny, off), *missing)
    assert "missing.gguf cannot be opened" in error

    little = configure(tmp_path, tiny, f"{off}\nkv.memory_mb = 1", "context = 4096\nkv_dtype = 'f32'")
    found, error = findings(capsys, 4, "--config", little)
    assert "needs" in error

    found, error = findings(capsys, 2, "--config", configure(tmp_path, tiny, off, "context = 4097"))
    assert "context = 4097 is more than the 4096 positions" in found["model tiny"]["text"]

    assert main(["doctor", "--config", str(tmp_path / "missing.toml")]) == 2


def test_a_driver_that_hangs_is_a_problem(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "one of Vulkan's drivers does not answer within 30 s"

    def ask(self: Aside, look: str) -> Finding:
        if look == "loader":
            return Finding(subject=look, text="Vulkan 1.3")
        raise DeviceTimeoutError(text)

    monkeypatch.setattr(Aside, "ask", ask)
    found, error = findings(capsys, 1, "--config", configure(tmp_path, tiny))
    assert found["Vulkan"]["text"] == text
    assert "VK_DRIVER_FILES=" in found["Vulkan"]["remedy"]
    assert found["model tiny"]["text"] == f"it is not known where it would run: {text}"
    assert error.startswith(f"tierd: Vulkan: {text}; ")
    assert error.count("\n") == 1


@needs_kompute
def test_kompute_is_tried_on_the_device(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = "[gpu]\nallow_software = true\nmode = 'rails'\nrequire = 'rails'"
    config = configure(tmp_path, tiny, sections)
    found, error = findings(capsys, 0, "--config", config)
    assert found["rails"]["text"].endswith(" multiplies right on the device")
    assert found["model tiny"]["text"] == "runs as gpu:rails"

    (tmp_path / "kp.py").write_text("raise ImportError('not\\ntoday')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found, error = findings(capsys, 3, "--config", config)
    assert (found["witness"]["verdict"], found["rails"]["verdict"]) == ("ok", "problem")
    assert error.startswith("tierd: rails: kp cannot be imported: not today; ")
    assert error.count("\n") == 1


@pytest.mark.usefixtures("_no_gpu")
def test_people_get_a_table_with_the_remedies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["ok", "memory"] in [line[:2] for line in lines]
    assert ["->", "unset", "VK_DRIVER_FILES"] in lines
