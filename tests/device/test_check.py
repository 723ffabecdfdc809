"""The check itself: whole, on a software device, and its parts on made-up figures."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from device import large, speed, wheels
from device.bars import BARS, judge
from device.checks import MOST_S, late
from device.report import Report
from tierd.backends.resident.memory import Shape
from tierd.errors import DeviceError, DeviceTimeoutError

CHECK = Path(__file__).with_name("check")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CHECK), *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_a_software_device_is_checked_but_for_the_bars(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run("--allow-software", "--small", "--out", out, "--folder", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    found = json.loads(out.read_text())
    assert found["passed"]
    assert found["host"]["cores"] > 0
    assert found["device"]["type"] == "software"
    assert found["device"]["heaps"][0]["size"] > 0
    assert found["parity"]["result"] == "pass"
    for part in ("host", "hidden", "scores", "bits", "greedy"):
        assert {entry["result"] for entry in found["parity"][part]} == {"pass"}
    assert all(0 < entry["mean"] < entry["bound"] for entry in found["parity"]["host"])
    assert found["bandwidth"]["memory"] >= found["bandwidth"]["copy"] > 0
    assert found["bandwidth"]["to_device"] > 0
    assert found["load"]["model"]["layers"] == speed.SMALL.sizes.layers
    assert found["switch"]["switch_s"] == found["switch"]["drop_s"] + found["switch"]["load_s"]
    assert found["switch"]["upload_bytes"] >= 0.9 * found["load"]["model"]["bytes"]
    sizes = speed.SMALL.sizes
    all_but_the_embedding = sizes.bytes - sizes.vocabulary * sizes.embedding * 18 // 32  # Q4_0
    for streams in ("streams_1", "streams_8"):
        decode = found["decode"][streams]
        assert decode["bytes_per_step"] > all_but_the_embedding
        assert decode["tokens_per_s"] > 0
        assert 0 <= decode["idle"] < 1
        kinds = {entry["kind"].split()[0] for entry in found["operations"][streams]["kinds"]}
        assert kinds >= {"embed", "norm", "heads", "attention", "gate", "candidates", "draw"}
    assert found["prefill"]["tokens_per_s"] > 0
    matrices = found["matrices"]
    if matrices["result"] == "not run":
        assert matrices["reason"].startswith(f"{found['device']['name']} lacks cooperativeMatrix")
    else:
        assert matrices["result"] == "pass"
        assert {entry["result"] for entry in (*matrices["products"], *matrices["host"])} == {"pass"}
        assert matrices["prefill"]["ratio"] > 0
    assert set(found["bars"]) == {bar.name for bar in BARS}
    for entry in found["bars"].values():
        assert entry["result"] == "not run"
        assert entry["reason"] == "a software device"
        assert entry["figure"] >= 0


def test_without_a_device_it_says_why(tmp_path: Path) -> None:
    done = run("--out", tmp_path / "out.json")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "software device" in done.stderr
    assert "software device" in json.loads((tmp_path / "out.json").read_text())["device"]["reason"]


def test_wheels_are_unpacked_side_by_side(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no wheels"):
        wheels.unpack(tmp_path, tmp_path / "packages")
    for name in ("one-1.0-py3-none-any", "two-1.0-py2.py3-none-any"):
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as archive:
            archive.writestr(f"{name.partition('-')[0]}.py", "value = 1\n")
    wheels.unpack(tmp_path, tmp_path / "packages")
    assert sorted(path.name for path in (tmp_path / "packages").iterdir()) == ["one.py", "two.py"]
    (tmp_path / "three-1.0-cp27-cp27m-manylinux1_x86_64.whl").touch()
    with pytest.raises(ValueError, match="is not for Python cp3"):
        wheels.unpack(tmp_path, tmp_path / "packages")


def test_wheels_of_nothing_are_a_usage_error(tmp_path: Path) -> None:
    done = run("--wheels", tmp_path)
    assert done.returncode == 2
    assert "holds no wheels; make it with --collect" in done.stderr


def figures(decode: float, idle: float, upload: float) -> dict[str, Any]:
    return {
        "bandwidth": {"memory": 100.0, "to_device": 10.0},
        "decode": {"streams_1": {"rate": 100.0 * decode, "idle": idle}},
        "switch": {"upload_rate": 10.0 * upload},
    }


def test_bars_pass_at_their_mark_and_fail_beyond() -> None:
    assert [entry["result"] for entry in judge(figures(0.75, 0.1, 0.75), reason="").values()] == ["pass"] * 3
    assert [entry["result"] for entry in judge(figures(0.5, 0.11, 0.5), reason="").values()] == ["fail"] * 3


def test_a_bar_without_its_figure_is_not_run() -> None:
    found = figures(0.75, 0.1, 0.75) | {"decode": {"result": "fail", "reason": "lost"}}
    decode, idle, upload = judge(found, reason="").values()
    assert decode["result"] == idle["result"] == "not run"
    assert decode["figure"] is None
    assert upload["result"] == "pass"


def test_a_section_that_fails_does_not_stop_others(tmp_path: Path) -> None:
    report = Report(tmp_path / "out.json")

    def fail() -> dict[str, Any]:
        raise DeviceError("no room")

    assert report.section("first", fail) is None
    assert report.section("second", lambda: {"value": 1}) == {"value": 1}
    assert report.section("third", lambda: {"bar": {"result": "fail"}}) is not None
    assert report.failed == ["first", "bar"]
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["first"] == {"result": "fail", "reason": "DeviceError: no room"}
    assert found["second"] == {"value": 1}


def test_nothing_is_asked_of_a_lost_device() -> None:
    report = Report(None)

    def hang() -> dict[str, Any]:
        raise DeviceTimeoutError("a step does not end")

    report.section("first", hang)
    assert report.section("second", lambda: pytest.fail("was run")) is None
    assert report.found["second"] == {"result": "not run", "reason": "the device was lost in first"}


def test_a_section_is_begun_only_where_it_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("device.report.time", SimpleNamespace(monotonic=lambda: now))
    report = Report(None)
    now += MOST_S - 40
    assert late(report, 40) == ""
    now += 1
    report.section("first", dict)
    assert report.took == {"first": 0}
    assert late(report, 40) == "out of time: it may take 40 s, 39 s are left"


@pytest.mark.parametrize(
    ("gib", "rate", "layers", "shortage"),
    [
        (16, 1e9, 32, ""),
        (4, 1e9, 16, "32 layers do not fit: too little memory of the device"),
        (16, 40e6, 16, "32 layers do not fit: too little speed of the disk"),
    ],
)
def test_as_many_layers_as_fit(
    gib: int, rate: float, layers: int, shortage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "memory_available", lambda: 64 << 30)
    monkeypatch.setattr(speed, "_write_rate", lambda _: rate)
    monkeypatch.setattr(speed.shutil, "disk_usage", lambda _: SimpleNamespace(free=64 << 30))
    device: Any = SimpleNamespace(budget=lambda: gib << 30, used=0)
    shape = Shape(regions=8, positions=1024, max_rows=264, selected=8)
    sizes, told = speed.fit(large.Sizes(), shape, device, Path())
    assert (sizes.layers, told) == (layers, shortage)


def test_the_large_model_has_the_shape_of_a_7b() -> None:
    assert 3.9e9 < large.Sizes().bytes < 4.2e9
