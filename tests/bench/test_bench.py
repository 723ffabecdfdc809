"""The benches' own parts, on a tiny model; what they measure is not looked at here."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import contest
import device_throughput
import gaps
import serving
import serving_tables
import switching
import switching_tables
import table
import tables
import throughput
import tiny
from child import Child
from memory import Peak, status

HERE = Path(__file__).parent


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.write_llama(tmp_path / "tiny.gguf", format="Q8_0", n_embd=96, head_size=32, ff=160)


@pytest.mark.parametrize("where", [[], ["--device"]], ids=["host", "device"])
def test_tierds_side_answers_calls(where: list[str], model: Path, tmp_path: Path) -> None:
    environment = {"HOSTKERNELS_LEVEL": "portable", "XDG_CACHE_HOME": str(tmp_path)}
    with Child([sys.executable, str(HERE / "tierd_side.py"), *where], environment) as side:
        about = side.ask("about")
        assert about["level"] == "portable"
        assert set(about.get("device", {})) == ({"name", "type", "driver", "vulkan"} if where else set())
        for _ in range(2):
            loaded = side.ask("load", path=str(model), threads=2, context=128, streams=3)
            assert loaded["seconds"] > 0
            assert loaded["vocabulary"] == 301
            assert loaded["page_pool"] > 0
        assert side.ask("prefill", prompt=[1, 2, 3]) > 0
        assert side.ask("decode", prompts=[[1] * 70, [2], [3, 4]], tokens=5) > 0
        with Peak(side.pid) as peak:
            side.ask("fill", prompts=[[1] * 100, [2] * 100, [3] * 100], tokens=28)
        assert 0 < peak.bytes <= status(side.pid)["VmHWM"]


class FakeSide:
    """Answers at once; prompts take it a second a token. asked: all that it and its like were asked."""

    def __init__(self, name: str, asked: list[tuple[str, str, Any]]) -> None:
        self._name = name
        self._asked = asked

    def __enter__(self) -> FakeSide:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, call: str, **arguments: Any) -> Any:
        self._asked.append((self._name, call, arguments))
        if call == "load":
            return {"seconds": 0.5, "vocabulary": 1000}
        return 0.25 * len(arguments.get("prompts", [0, 0, 0, 0]))


def test_sides_take_turns_over_the_same_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "REST_S", 0)
    asked: list[tuple[str, str, Any]] = []
    sides = {name: lambda name=name: FakeSide(name, asked) for name in ("a", "b")}
    amounts = {"rounds": 2, "threads": 3, "prefill": 8, "prompt": 4, "tokens": 6, "streams": 2, "context": 64}
    results = contest.Contest(argparse.Namespace(**amounts), sides).measure(Path("m.gguf"))
    rates = {"load": [0.5, 0.5], "prefill": [8, 8], "decode_one": [24, 24], "decode_many": [24, 24]}
    assert results == {"a": rates, "b": rates}
    prefills = [(name, arguments["prompt"]) for name, call, arguments in asked if call == "prefill"]
    assert [name for name, _ in prefills] == ["a", "b", "b", "a", "a", "b"]
    for (_, first), (_, second) in zip(prefills[::2], prefills[1::2], strict=True):
        assert first == second
    assert len({tuple(prompt) for _, prompt in prefills}) == 3
    loads = [arguments for _, call, arguments in asked if call == "load"]
    assert loads == [{"path": "m.gguf", "threads": 3, "context": 64, "streams": 2}] * 6


def test_a_side_on_another_device_is_told(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("""#!/bin/sh\nread call\necho '{"device": "Another", "line": ""}'\n""")
    other.chmod(0o755)
    (tmp_path / device_throughput.MODEL.file).touch()
    options = ["--llama-python", str(other), "--models", str(tmp_path)]
    run = subprocess.run(
        [sys.executable, str(HERE / "device_throughput.py"), *options],
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert "llama.cpp on Another: choose with --llama-device" in run.stderr


def test_a_side_that_fails_is_told() -> None:
    with (
        Child([sys.executable, str(HERE / "tierd_side.py")], {}) as side,
        pytest.raises(SystemExit, match="ended in prefill, with code 1"),
    ):
        side.ask("prefill", prompt=[1])


def test_gaps_are_measured_while_a_prompt_is_read(tmp_path: Path) -> None:
    path = tiny.write_llama(tmp_path / "tiny.gguf", context=2048)
    times, first = gaps.measure(path, 1.0, prompt=500, streams=2, context=2048)
    assert all(0 <= gap < first for gap in times)
    assert len(times) > 10


@pytest.mark.parametrize("options", [["--streams", "2"], ["--chunk", "9"]], ids=["decode", "chunk"])
def test_a_profile_is_printed(model: Path, options: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, str(HERE / "profile_step.py"), str(model), *options, "--steps", "3"],
        env=os.environ | {"HOSTKERNELS_LEVEL": "portable"},
        capture_output=True,
        text=True,
        check=True,
    )
    for line in ("level portable", "wait at barriers", "matmul ffn_down", "layer 1", "foreign call"):
        assert line in run.stdout


def test_a_profile_of_the_device_is_printed(model: Path, tmp_path: Path) -> None:
    options = ["--device", "--prompt", "1", "--steps", "3"]
    run = subprocess.run(
        [sys.executable, str(HERE / "profile_step.py"), str(model), *options],
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"Vulkan calls 2\.0, dispatches \d+, barriers \d+\n", run.stdout)
    assert re.search(r"\n2 x matvec\S* q8\S* ffn_down ", run.stdout)
    assert "streams 1, device " in run.stdout


def side(rate: float) -> dict[str, object]:
    rates = {measure: [9 * rate, rate, rate / 9] for measure in ("prefill", "decode_one", "decode_many")}
    return {"load": [0.5, 0.25, 1.0], **rates, "memory": {"peak_private": 125_000_000}}


RESULT = {
    "date": "2026-01-02T03:04:05+00:00",
    "machine": {"cores": 2, "processor": "A Processor", "flags": ["avx2", "fma"]},
    "options": {"rounds": 3, "threads": 2, "streams": 8, "context": 1024}
    | {"prefill": 512, "prompt": 128, "tokens": 64},
    "sides": {"tierd avx2": {}, "llama.cpp": {"llama_cpp_python": "1.2.3"}},
    "files": [{"title": "A Model", "sides": {"tierd avx2": side(1500.0), "llama.cpp": side(500.0)}}],
}  # fmt: skip


def test_tables_tell_medians_and_ratios() -> None:
    heading, ours, theirs = tables.rows(RESULT)
    assert heading[1:4] == ["prompt of 512", "1 stream", "8 streams"]
    assert ours == ["A Model, tierd avx2", *["1,500 (3.00)"] * 3, "0.50 s", "125 MB"]
    assert theirs == ["A Model, llama.cpp", *["500"] * 3, "0.50 s", "125 MB"]
    assert len({len(line) for line in tables.HOST.plain(RESULT).splitlines()}) == 1
    assert "| A Model, llama.cpp | 500 |" in tables.HOST.markdown(RESULT)
    assert "2026-01-02" in tables.HOST.markdown(RESULT)


def test_a_table_of_a_device_names_it_and_has_decimals_where_rates_are_low() -> None:
    rates = [{name: values for name, values in side(rate).items() if name != "memory"} for rate in (12, 2.5)]
    device = {"name": "A Device", "type": "software", "driver": "7", "vulkan": "1.3.0"}
    about = {"tierd": {"device": device}, "llama.cpp": {"cyllama_vulkan": "4.5.6", "device": "A Device"}}
    files = [{"title": "A Model", "sides": dict(zip(about, rates, strict=True))}]
    told = " ".join(tables.DEVICE.markdown(RESULT | {"sides": about, "files": files}).split())
    assert "| A Model, tierd | 12 (4.80) | 12 (4.80) | 12 (4.80) | 0.50 s |" in told
    assert "| A Model, llama.cpp | 2.5 | 2.5 | 2.5 | 0.50 s |" in told
    assert "software device A Device" in told
    assert "cyllama-vulkan 4.5.6" in told
    assert "memory" not in told


def test_only_what_stands_between_the_marks_is_replaced(tmp_path: Path) -> None:
    made = table.Table(tmp_path, "a table", tables.rows, lambda result: result["date"])
    begin, end = made.marks
    page = f"before\n{begin}\nold\n{end}\nafter\n"
    assert made.put(page) == f"before\n{begin}\n\n{end}\nafter\n"
    (tmp_path / "2026-01-02.json").write_text(json.dumps(RESULT), encoding="utf-8")
    assert made.put(page) == f"before\n{begin}\n{made.markdown(RESULT)}\n{end}\nafter\n"
    with pytest.raises(SystemExit, match="once"):
        made.put("no marks")


TALK = {
    "cold": {"first": 2.0, "prompt": 1600, "cached": 0},
    "returns": [{"first": seconds, "prompt": 1624, "cached": 1607} for seconds in (0.1, 0.3, 0.125)],
}
SWITCHED = {
    "date": "2026-01-02T03:04:05+00:00",
    "machine": RESULT["machine"],
    "options": {"conversation": 1600, "returns": 3, "tokens": 256, "calls": 500},
    "files": [{"id": "a", "title": "A Model"}, {"id": "b", "title": "Another"}],
    "tiers": {
        "cpu": {
            "device": "",
            "conversations": [TALK | {"model": "a", "other": "b"}],
            "switches": [],
            "calls": {
                "during": {"load": 500, "switch": 0},
                "paths": {"/tier": {"p50": 0.001, "p99": 0.02, "most": 0.075}},
            },
        },
        "device": {
            "device": "A Device (of some version)",
            "conversations": [TALK | {"model": "b", "other": "a"}],
            "switches": [
                {"came": "b", "seconds": 0.5, "phases": {"pause": 0.02, "rearm": 0.25}},
                {"came": "a", "seconds": 0.5, "phases": {"rearm": 0.25, "rehome": 0.0004}},
            ],
            "calls": {
                "during": {"load": 200, "switch": 300},
                "paths": {"/tier": {"p50": 0.001, "p99": 0.05, "most": 12.0}},
            },
        },
    },
}  # fmt: skip


def test_tables_of_switches_tell_times() -> None:
    told = " ".join(switching_tables.RETURNS.markdown(SWITCHED).split())
    assert "| A Model, CPU | 1,600 tokens | 2,000 ms | 125 ms | 300 ms | 1/16 |" in told
    assert "| Another, A Device | 1,600 tokens |" in told
    told = " ".join(switching_tables.PHASES.markdown(SWITCHED).split())
    assert "| | pause | rearm | rehome | in all |" in told
    assert "| Another comes | 20 ms | 250 ms | 0.0 ms | 500 ms |" in told
    assert "| A Model comes | 0.0 ms | 250 ms | 0.4 ms | 500 ms |" in told
    told = " ".join(switching_tables.CALLS.markdown(SWITCHED).split())
    assert "| `/tier` | 1.0 ms | 20 ms | 75 ms | 1.0 ms | 50 ms | 12.0 s |" in told
    assert "(CPU: 500 in a load; A Device: 200 in a load, 300 in a switch)" in told


@pytest.mark.parametrize(
    ("waited", "cold", "slow"), [(0.15, 1.25, 0.05), (0.151, 2.0, 0.05), (0.1, 2.0, 0.051)]
)
def test_bars_of_switches_are_told(
    waited: float, cold: float, slow: float, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = {"model": "a", "cold": {"first": cold}, "returns": [{"first": waited}]}
    paths = {"/tier": {"p99": slow}, "/slots": {"p99": 0.001}}
    tier = {"conversations": [talk], "calls": {"paths": paths}}
    missed = int(waited > 0.15) + int(slow > 0.05)
    assert switching.judge({"cpu": tier}) == (1 if missed else 0)
    assert capsys.readouterr().out.count("MISSED") == missed
    missed = int(waited > cold / 10) + int(slow > 0.05)
    assert switching.judge({"device": tier}) == (1 if missed else 0)
    assert capsys.readouterr().out.count("MISSED") == missed


def test_two_models_take_turns_on_a_device(tmp_path: Path) -> None:
    """The bars are for real models: their being missed here is no failure."""
    for name in switching.FILES:
        tiny.write_llama(tmp_path / throughput.MODELS[name].file, context=2048, head_size=32, ff=96)
    amounts = ["--conversation", "100", "--returns", "1", "--tokens", "64", "--calls", "2"]
    folders = ["--models", str(tmp_path), "--results", str(tmp_path / "results")]
    run = subprocess.run(
        [sys.executable, str(HERE / "switching.py"), "--tiers", "device", *amounts, *folders],
        check=False,
        capture_output=True,
        text=True,
    )
    assert "of a return to gemma3" in run.stdout, run.stderr
    (path,) = (tmp_path / "results").iterdir()
    measured = json.loads(path.read_text(encoding="utf-8"))["tiers"]["device"]
    assert "llvmpipe" in measured["device"]
    for talk in measured["conversations"]:
        (back,) = talk["returns"]
        assert back["cached"] >= 100
        assert 0 < back["first"] < talk["cold"]["first"] * 1000
    assert [switch["came"] for switch in measured["switches"]] == ["gemma3", "q4_1"]
    away, home = (switch["phases"] for switch in measured["switches"])
    assert {"pause", "hydrate", "drop", "save", "restore", "rearm", "rehome"} <= set(away) | set(home)
    assert set(measured["calls"]["paths"]) == set(switching.PATHS)
    assert sum(measured["calls"]["during"].values()) == 2 * len(switching.PATHS)


def load(clients: int, rate: float) -> dict[str, Any]:
    waits = {"first": {"p50": 0.05, "p99": 0.5}, "gap": {"p50": 0.004, "p99": 12.0}}
    sides = {"tierd": 3000.0, "llama.cpp": rate}
    return {
        "clients": clients,
        "sides": {name: waits | {"rates": [9 * one, one, one / 9]} for name, one in sides.items()},
    }


SERVED = {
    "date": "2026-01-02T03:04:05+00:00",
    "machine": RESULT["machine"],
    "options": {"rounds": 3, "threads": 2, "prompt": 100, "tokens": 64, "turn": 1500, "turns": 3},
    "files": [{"title": "A Model"}],
    "server": {"name": "a server", "version": "1.2.3", "one_at_a_time": True},
    "loads": [load(1, 2000.0), load(8, 1000.0)],
    "turns": [
        {"second": {"first": second}, "fresh": {"first": fresh}}
        for second, fresh in ((0.3, 0.1), (0.15, 0.3), (0.1, 0.2))
    ],
}  # fmt: skip


def test_a_table_of_served_clients_tells_rates_and_waits() -> None:
    told = " ".join(serving_tables.SERVING.markdown(SERVED).split())
    assert "| 1 client, tierd | 3,000 (1.50) | 50 ms | 500 ms | 4.0 ms | 12.0 s |" in told
    assert "| 8 clients, llama.cpp | 1,000 | 50 ms |" in told
    assert "a server (1.2.3), which computes one stream at a time" in told
    assert "after 150 ms, a fresh prompt of as many after 200 ms: 0.75 times" in told


@pytest.mark.parametrize(("rate", "second"), [(1000.0, 0.3), (1001.0, 0.3), (1000.0, 0.301)])
def test_bars_of_serving_are_told(rate: float, second: float, capsys: pytest.CaptureFixture[str]) -> None:
    turns = [{"second": {"first": second}, "fresh": {"first": 0.2}}]
    missed = int(rate > 1000) + int(second > 0.3)
    assert serving.judge(SERVED | {"loads": [load(1, 2000.0), load(8, rate)], "turns": turns}) == missed
    told = capsys.readouterr().out
    assert (told.count("met"), told.count("MISSED")) == (2 - missed, missed)


LLAMA_SERVER = r"""
import http.server, json, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        self.do_GET()
        for text, end in (("a", None), ("b", None), ("", "length")):
            time.sleep(0.01)
            event = {"choices": [{"text": text, "finish_reason": end}]}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

if "--version" in sys.argv:
    print("version: 7", file=sys.stderr)
else:
    address = sys.argv[sys.argv.index("--host") + 1], int(sys.argv[sys.argv.index("--port") + 1])
    http.server.ThreadingHTTPServer(address, Handler).serve_forever()
"""


def test_servers_answer_the_same_clients(tmp_path: Path) -> None:
    """A program that only claims to be llama-server stands in for it."""
    tiny.write_llama(tmp_path / throughput.MODELS["q4_1"].file, context=2048, head_size=32, ff=96)
    other = tmp_path / "llama-server"
    other.write_text(f"#!{sys.executable}{LLAMA_SERVER}", encoding="utf-8")
    other.chmod(0o755)
    amounts = ["--clients", "1,3", "--rounds", "2", "--prompt", "4", "--tokens", "8"]
    amounts += ["--turn", "200", "--turns", "1", "--threads", "1"]
    folders = ["--models", str(tmp_path), "--results", str(tmp_path / "results")]
    run = subprocess.run(
        [sys.executable, str(HERE / "serving.py"), *amounts, *folders],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert "of a second turn" in run.stdout, run.stderr
    (path,) = (tmp_path / "results").iterdir()
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["server"] == {"name": "llama-server", "version": "version: 7", "one_at_a_time": False}
    assert [load["clients"] for load in result["loads"]] == [1, 3]
    for load in result["loads"]:
        for side in load["sides"].values():
            assert len(side["rates"]) == 2
            assert side["tokens"] == 2 * 8 * load["clients"]
            assert 0 < side["first"]["p50"] <= side["first"]["p99"]
        assert load["sides"]["llama.cpp"]["gap"]["p99"] > 0.009
    (turn,) = result["turns"]
    assert turn["second"]["cached"] >= 192
    assert turn["fresh"]["prompt"] == turn["second"]["prompt"] - turn["second"]["cached"] >= 4
    assert turn["fresh"]["cached"] < 4


@pytest.mark.parametrize("made", tables.TABLES, ids=lambda made: made.name)
def test_the_readme_has_the_table_of_the_newest_result(made: table.Table) -> None:
    page = tables.README.read_text(encoding="utf-8")
    assert made.put(page) == page
