"""What `tierd size` says, held against what a process then holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kompute import needs_kompute
from no_gpu import NO_DRIVER, NO_GPU
from tierd.cli import main
from tiny import write_llama

HELD = Path(__file__).with_name("held.py")
MIB = 1 << 20
# What the processor holds of the tiny one is 64 MiB of K/V, and a tenth of that besides.
TINY = {"context": 4096, "streams": 8, "kv_dtype": "f16"}
SMALL = {"context": 1024, "streams": 4, "kv_dtype": "f16"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(
        tmp_path_factory.mktemp("size") / "tiny.gguf",
        n_embd=256, layers=4, heads=8, kv_heads=4, head_size=32, ff=512, vocab=2048, context=4096,
    )  # fmt: skip


@pytest.fixture(scope="module")
def bare(tiny: Path) -> Path:
    """The same without a chat template, each of which takes a process."""
    content, key = tiny.read_bytes(), b"tokenizer.chat_template"
    assert content.count(key) == 1
    tiny.with_name("bare.gguf").write_bytes(content.replace(key, b"?" * len(key)))
    return tiny.with_name("bare.gguf")


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NO_GPU.items():
        monkeypatch.setenv(name, value)


def configure(folder: Path, model: Path, mode: str, vram_mb: int = 0, **table: object) -> Path:
    file = folder / "size.toml"
    keys = "".join(f"{key} = {value!r}\n" for key, value in table.items())
    file.write_text(
        f"engine.threads = 1\n[gpu]\nmode = '{mode}'\nallow_software = true\nvram_limit_mb = {vram_mb}\n"
        f"[[models]]\nid = 'm'\npath = '{model}'\n{keys}"
    )
    return file


def foreseen_and_held(folder: Path, config: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ask a process of its own, which has nothing yet."""
    warm = write_llama(folder / "warm.gguf", head_size=32)
    environment = os.environ | {"PYTHONPATH": str(HELD.parents[1])}
    done = subprocess.run(
        [sys.executable, str(HELD), str(config), str(warm)],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    return answer["report"], answer["held"]


def on_host(folder: Path, model: Path, **table: object) -> None:
    report, held = foreseen_and_held(folder, configure(folder, model, "off", **table))
    assert held["device"] == 0
    assert report["host"]["total"] + report["text"] == pytest.approx(held["host"], rel=0.03)
    assert (report["device"], report["no_device"], report["rails"]) == (None, "gpu.mode is off", None)


def on_device(folder: Path, model: Path, **table: object) -> None:
    report, held = foreseen_and_held(folder, configure(folder, model, "auto", **table))
    assert report["device"]["decline"] == report["no_device"] == ""
    assert report["device"]["total"] == pytest.approx(held["device"], rel=0.03)
    assert report["rails"] is None


def on_rails(folder: Path, model: Path, vram_mb: int, **table: object) -> dict[str, Any]:
    """Kompute's device lies in the process's memory, as the copies of its tensors do."""
    report, held = foreseen_and_held(folder, configure(folder, model, "rails", vram_mb, **table))
    rails = dict(report["rails"])
    assert rails["tensors"] + rails["copies"] == pytest.approx(held["device"], rel=0.03)
    assert rails["shared"] == pytest.approx(held["shared"], rel=0.03)
    assert rails["host"] + report["text"] == pytest.approx(held["host"], rel=0.03)
    return rails


def test_a_tiny_model_takes_what_was_foreseen_on_a_device(tiny: Path, tmp_path: Path) -> None:
    on_device(tmp_path, tiny, **TINY)


@needs_kompute
def test_a_tiny_model_takes_what_was_foreseen_on_rails(tiny: Path, tmp_path: Path) -> None:
    rails = on_rails(tmp_path, tiny, 17, **TINY)
    assert (rails["layers"], rails["all_layers"]) == (3, 4)


def test_smollm2_takes_what_was_foreseen(smollm2_path: Path, tmp_path: Path) -> None:
    on_host(tmp_path, smollm2_path, **SMALL)


@pytest.mark.long
@pytest.mark.parametrize("codec", ["f16", "q8_0", "tq4"])
def test_real_models_take_what_was_foreseen(
    smollm2_path: Path, gemma3_path: Path, tmp_path: Path, codec: str
) -> None:
    for path in (smollm2_path, gemma3_path):
        on_host(tmp_path, path, **SMALL | {"kv_dtype": codec})
        on_device(tmp_path, path, **SMALL | {"kv_dtype": codec})


@pytest.mark.long
@needs_kompute
def test_real_models_take_what_was_foreseen_on_rails(
    smollm2_path: Path, gemma3_path: Path, tmp_path: Path
) -> None:
    for path in (smollm2_path, gemma3_path):
        rails = on_rails(tmp_path, path, 100, **SMALL)
        assert 0 < rails["layers"] < rails["all_layers"]


def size(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["size", *arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.usefixtures("_no_gpu")
def test_no_weight_is_read(bare: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a file whose weights are a hole, the header says the same."""
    hollow = tmp_path / "bare.gguf"
    whole = bare.read_bytes()
    cut = whole.index(b"token_embd.weight") + 4096
    with hollow.open("wb") as file:
        file.write(whole[:cut])
        file.truncate(len(whole))
    first, second = (size(capsys, str(path), "--context", "512") for path in (bare, hollow))
    for report in (first, second):
        for key in ("path", "text"):
            del report[key]
        del report["host"]["room"], report["host"]["most_streams"]  # of memory that is free at the moment
    assert first == second


@pytest.mark.usefixtures("_no_gpu")
def test_the_limits_are_told_apart(bare: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page of 64 positions takes 4 layers x K and V x 4 heads x 32 values x 2 bytes x 64 = 128 KiB."""
    config = tmp_path / "limits.toml"
    config.write_text(
        "engine.chunk_rows = 100\nqueue.capacity = 7\nkv.memory_mb = 10\n"
        f"[[models]]\nid = 'm'\npath = '{bare}'\nstreams = 16\ncontext = 1024\n"
    )
    report = size(capsys, "m", "--config", str(config))
    host = report["host"]
    assert (host["context"], host["streams"], host["most_streams"]) == (1024, 5, 5)
    assert host["kv"] == 10 * MIB
    assert (host["rows"], report["streams"], report["prompt_rows"]) == (116, 16, 100)
    assert report["queue"] == 7
    assert report["sustained"] is None
    assert "tierd_generated_tokens_total" in report["sustained_by"]
    assert (report["device"], report["no_device"]) == (None, NO_DRIVER)

    fewer = size(capsys, "m", "--config", str(config), "--streams", "2", "--context", "512", "--kv", "q8_0")
    assert (fewer["host"]["streams"], fewer["streams"], fewer["kv"]) == (2, 2, "q8_0")
    assert fewer["host"]["kv"] == 2 * 8 * 128 * 1024 * 34 // 64
    assert fewer["host"]["most_streams"] == 10 * MIB // (8 * 128 * 1024 * 34 // 64)

    assert main(["size", "m", "--config", str(config)]) == 0
    shown = capsys.readouterr().out
    assert "Rows of a step: 116, one for each of 16 streams that generate and 100 of prompts" in shown
    assert "Queue: 7 more requests wait" in shown
    assert f"It cannot be whole on a GPU: {NO_DRIVER}." in shown


@pytest.mark.usefixtures("_no_gpu")
def test_what_does_not_fit_is_told_with_its_numbers(
    bare: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "little.toml"
    config.write_text("kv.memory_mb = 1\n")
    arguments = (str(bare), "--config", str(config), "--context", "4096", "--streams", "3", "--vram", "12")
    report = size(capsys, *arguments)
    host = report["host"]
    assert host["decline"].startswith("one stream of 4096 positions needs 8.0 MiB of K/V memory")
    assert (host["kv"], host["most_streams"]) == (3 * 8 * MIB, 0)
    assert report["rails"]["decline"] == host["decline"]

    assert main(["size", *arguments]) == 0
    shown = capsys.readouterr().out
    assert f"It cannot be on cpu: {host['decline']}." in shown
    assert "Streams resident by memory, of 3: none." in shown


@pytest.mark.usefixtures("_no_gpu")
def test_a_part_on_rails_is_told_of_a_gpu_that_is_not_there(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A layer's weights take 4 bytes each, twice: of 256 x (256 + 128 + 128 + 256) and 3 x 256 x 512."""
    layer = 2 * 4 * (256 * 768 + 3 * 256 * 512)
    assert size(capsys, str(bare))["rails"] is None
    few, more = (size(capsys, str(bare), "--vram", mib)["rails"] for mib in ("12", "17"))
    assert (few["layers"], more["layers"], more["room"]) == (1, 3, 17 * MIB)
    assert more["taken"] - few["taken"] == 2 * layer
    assert few["tensors"] == few["taken"] // 2

    little = size(capsys, str(bare), "--vram", "1")["rails"]
    assert (little["layers"], little["taken"]) == (0, 0)
    assert little["decline"].startswith("1.0 MiB hold not one of its layers; the first one takes ")

    assert main(["size", str(bare), "--vram", "12"]) == 0
    assert "12.0 MiB for it has the matmuls of 1 of 4 layers" in capsys.readouterr().out
    assert main(["size", str(bare), "--vram", "1"]) == 0
    assert "Nor can a part of it be on a GPU, on rails: 1.0 MiB hold" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("gpu", "arguments", "rails"),
    [
        ("", [], False),
        ("", ["--vram", "12"], True),
        ("vram_limit_mb = 12", [], True),
        ("mode = 'rails'", [], True),
        ("mode = 'off'", ["--vram", "12"], False),
        ("require = 'resident'", ["--vram", "12"], False),
    ],
)
def test_rails_are_told_where_a_device_does_not_hold_the_model(
    bare: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    gpu: str,
    arguments: list[str],
    rails: bool,
) -> None:
    config = tmp_path / "gpu.toml"
    config.write_text(f"[gpu]\nallow_software = true\n{gpu}\n")
    report = size(capsys, str(bare), "--config", str(config), "--streams", "1", *arguments)
    assert (report["rails"] is not None) == rails


@pytest.mark.usefixtures("_no_gpu")
def test_a_file_may_have_any_name_and_lie_in_the_models_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    file = tmp_path / "tierd" / "models" / "a model.gguf"
    file.parent.mkdir(parents=True)
    write_llama(file, head_size=32)
    report = size(capsys, "a model.gguf")
    assert (report["model"], report["path"]) == ("a model", str(file))


def test_the_regions_of_a_device_are_counted(
    bare: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "device.toml"
    config.write_text("engine.chunk_rows = 16\n[gpu]\nallow_software = true\nvram_limit_mb = 40\n")
    arguments = (str(bare), "--config", str(config), "--context", "1024", "--streams", "4")
    device = size(capsys, *arguments, "--regions", "2")["device"]
    assert (device["streams"], device["kv"], device["decline"]) == (2, 4 * MIB, "")
    assert device["room"] == 40 * MIB
    most = device["most_streams"]
    assert size(capsys, *arguments, "--regions", str(most))["device"]["context"] == 1024
    assert size(capsys, *arguments, "--regions", str(most + 1))["device"]["context"] < 1024

    little = size(capsys, *arguments, "--regions", "500")["device"]
    assert "500 regions" in little["decline"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["missing.gguf"], 4, "missing.gguf is no file here or in "),
        (["{}", "--kv", "q9"], 2, "kv_dtype must be one of f32, f16, q8_0, tq4, not 'q9'"),
        (["{}", "--streams", "0"], 2, "streams must lie between 1 and 1024, not 0"),
        (["{}", "--context", "4097"], 2, "context = 4097 is more than the 4096 positions"),
        ([], 2, "Missing argument 'MODEL'"),
    ],
)
@pytest.mark.usefixtures("_no_gpu")
def test_what_cannot_be_is_refused(
    bare: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert main(["size", *(argument.format(bare) for argument in arguments)]) == code
    assert words in capsys.readouterr().err
