"""The benches' own parts, on a tiny model; what they measure is not looked at here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tables
import tiny
from child import Child
from memory import Peak, status

HERE = Path(__file__).parent


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.write_llama(tmp_path / "tiny.gguf", format="Q8_0", n_embd=96, head_size=32, ff=160)


def test_tierds_side_answers_calls(model: Path) -> None:
    with Child([sys.executable, str(HERE / "tierd_side.py")], {"HOSTKERNELS_LEVEL": "portable"}) as side:
        assert side.ask("about")["level"] == "portable"
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


def test_a_side_that_fails_is_told() -> None:
    with (
        Child([sys.executable, str(HERE / "tierd_side.py")], {}) as side,
        pytest.raises(SystemExit, match="ended in prefill, with code 1"),
    ):
        side.ask("prefill", prompt=[1])


def test_a_profile_is_printed(model: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(HERE / "profile_step.py"), str(model), "--streams", "2", "--steps", "3"],
        env=os.environ | {"HOSTKERNELS_LEVEL": "portable"},
        capture_output=True,
        text=True,
        check=True,
    )
    for line in ("level portable", "wait at barriers", "matmul ffn_down", "layer 1", "foreign call"):
        assert line in run.stdout


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
    assert len({len(line) for line in tables.plain(RESULT).splitlines()}) == 1
    assert "| A Model, llama.cpp | 500 |" in tables.markdown(RESULT)
    assert "2026-01-02" in tables.markdown(RESULT)


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    begin, end = tables.MARKS
    page = f"before\n{begin}\nold\n{end}\nafter\n"
    assert tables.between_marks(page, "new") == f"before\n{begin}\nnew\n{end}\nafter\n"
    with pytest.raises(SystemExit, match="once"):
        tables.between_marks("no marks", "new")


def test_the_readme_has_the_table_of_the_newest_result() -> None:
    page = tables.README.read_text(encoding="utf-8")
    results = sorted((HERE / "results").glob("*.json"))
    content = tables.markdown(json.loads(results[-1].read_text(encoding="utf-8"))) if results else ""
    assert tables.between_marks(page, content) == page
