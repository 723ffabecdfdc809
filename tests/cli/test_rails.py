"""`tierd serve` and `tierd models` with a model of which a device holds a part: llvmpipe, through Kompute."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.test_gpu import PROMPT, serving, settings
from kompute import needs_kompute
from tierd.cli import main
from tierd.cli.client import at_socket
from tiny import write_llama

pytestmark = needs_kompute
GPU = "vram_limit_mb = 4\nrails_rows = 8"
MODEL = "context = 4096\nctx_strict = true"
REASON = "weights and 4 regions at context 4096 need "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rails")
    write_llama(
        folder / "tiny.gguf",
        format="Q8_0", n_embd=256, head_size=64, heads=4, kv_heads=2, ff=512, layers=4, context=4096,
    )  # fmt: skip
    return folder


def test_a_model_that_does_not_fit_is_served_in_part(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings(folder, "part", GPU, MODEL)
    assert main(["models", "--config", str(config)]) == 0
    table, remark = capsys.readouterr().out.split("\n\n")
    assert table.splitlines()[1].split()[-1] == "gpu:rails"
    assert remark.startswith(f"tiny: not whole on the GPU: {REASON}")
    with serving(config) as daemon:
        client = at_socket(daemon.socket)
        (slot,) = client.get("/slots")["slots"]
        assert slot["outcome"] == "gpu:rails"
        assert slot["decline"].startswith(REASON)
        there = slot["placement"].count("device")
        assert slot["placement"] == ["device"] * there + ["cpu"] * (4 - there)
        assert 0 < there < 4
        tier = client.get("/tier")
        assert tier["memory"]["used"] == tier["reservations"]["tiny"]
        assert main(["ctl", "--socket", str(daemon.socket), "slots"]) == 0
        line, decline = capsys.readouterr().out.splitlines()[-2:]
        drawn = "#" * there + "." * (4 - there)
        assert line == f"tiny: matmuls of {there} of 4 layers are on the GPU for prompts: {drawn}"
        assert decline == f"tiny is not whole on the GPU: {slot['decline']}"
        assert daemon.complete(prompt="the and of " * 8)
        assert daemon.complete(**PROMPT)
    assert "failed at a product" not in config.with_suffix(".log").read_text()
