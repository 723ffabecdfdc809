from __future__ import annotations

import json
from pathlib import Path

import pytest

from no_gpu import NO_DRIVER, NO_GPU
from tierd.cli import main
from tiny import write_gemma3, write_llama


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NO_GPU.items():
        monkeypatch.setenv(name, value)


def test_lists_what_the_files_hold(
    capsys: pytest.CaptureFixture[str], smollm2_path: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(smollm2_path.read_bytes()[:1000])
    assert main(["models", "--json", "--model", str(smollm2_path), "--model", str(broken)]) == 0
    smollm2, cut = json.loads(capsys.readouterr().out)

    weights = smollm2.pop("weights")
    assert list(weights) == ["Q4_1", "Q8_0", "F32"]
    assert sum(weights.values()) == pytest.approx(1, abs=1e-3)
    assert smollm2 == {
        "id": "SmolLM2-135M-Instruct.Q4_1",
        "path": str(smollm2_path),
        "default": True,
        "architecture": "llama",
        "size": smollm2_path.stat().st_size,
        "context": 8192,
        "chat": True,
        "problem": None,
        "outcome": "cpu",
        "decline": NO_DRIVER,
        "products": "",
        "turns": False,
    }
    assert cut["problem"].startswith(f"{broken}: ")
    assert (cut["id"], cut["default"], cut["architecture"], cut["outcome"]) == ("broken", False, None, None)


def test_explains_what_cannot_be_served(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    good = write_gemma3(tmp_path / "good.gguf")
    strange = tmp_path / "strange.gguf"
    strange.write_bytes(write_llama(tmp_path / "llama.gguf").read_bytes().replace(b"llama", b"lhama"))
    assert main(["models", "--model", str(good), "--model", str(strange)]) == 0

    shown = capsys.readouterr().out
    table, explanation, decline = shown.split("\n\n")
    header, first, second = table.splitlines()
    columns = ["model", "architecture", "size", "weights", "context", "serves", "runs", "on"]
    assert header.split() == columns
    assert first.split()[:3] == ["good", "(default)", "gemma3"]
    assert second.split()[:2] == ["strange", "lhama"]
    assert second.split()[-1] == "no"
    assert first.split()[-1] == "cpu"
    assert explanation.startswith("strange: ")
    assert "lhama" in explanation
    assert decline == f"good: not on the GPU: {NO_DRIVER}\n"


def test_one_that_must_be_on_the_gpu_and_cannot_is_not_served(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_llama(tmp_path / "m.gguf")
    config = tmp_path / "tierd.toml"
    table = "[[models]]\nid = '{}'\npath = 'm.gguf'\nrequire = '{}'\n"
    config.write_text(f"gpu.require = 'resident'\n{table.format('must', '')}{table.format('may', 'none')}")
    assert main(["models", "--json", "--config", str(config)]) == 0
    must, may = json.loads(capsys.readouterr().out)
    assert must["problem"] == f"it must be resident on the GPU, as `require` demands, but {NO_DRIVER}"
    assert must["outcome"] is None
    assert (may["problem"], may["outcome"], may["decline"]) == (None, "cpu", NO_DRIVER)


def test_without_the_gpu_there_is_nothing_to_decline(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_llama(tmp_path / "m.gguf")
    config = tmp_path / "tierd.toml"
    config.write_text("gpu.mode = 'off'\n[[models]]\nid = 'm'\npath = 'm.gguf'\n")
    assert main(["models", "--json", "--config", str(config)]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["problem"], report["outcome"], report["decline"]) == (None, "cpu", "")


def test_a_template_of_ones_own_makes_a_chat_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain = write_llama(tmp_path / "plain.gguf")
    plain.write_bytes(plain.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.shut_template"))
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}")
    (tmp_path / "wrong.jinja").write_text("{{ messages")
    config = tmp_path / "tierd.toml"
    config.write_text(
        "".join(
            f"[[models]]\nid = '{name}'\npath = 'plain.gguf'\nchat_template = '{template}'\n"
            for name, template in (("none", ""), ("own", "own.jinja"), ("wrong", "wrong.jinja"))
        )
    )
    assert main(["models", "--json", "--config", str(config)]) == 0
    none, own, wrong = json.loads(capsys.readouterr().out)
    assert (none["chat"], own["chat"], wrong["chat"]) == (False, True, None)
    assert "the chat template given for" in wrong["problem"]
