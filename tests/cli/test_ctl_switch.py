"""`tierd ctl` while models take turns on a fake device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.null_stage import NullStage, seated_slot
from live import LONG_WAIT_S, Gate, Live, serve, wait_until
from tierd.cli import main
from tierd.http.listeners import listen_at
from tierd.kv.bank import Bank
from tierd.settings import ModelSettings, SwitchSettings
from tierd.slot import Slot

PHASES = ["pause", "hydrate", "drop", "save", "restore", "rearm", "rehome"]
REQUEST = {"model": "a", "prompt": [1, 2, 3], "max_tokens": 20, "ignore_eos": True, "stream": True}


@dataclass(frozen=True)
class House:
    """A daemon of "a" and "b", of which the device has room for one; steps of "a" wait for the gate."""

    live: Live
    gate: Gate
    path: Path
    capsys: pytest.CaptureFixture[str]

    def ctl(self, *arguments: str) -> list[str]:
        """Return the lines of standard output, their words one space apart."""
        code = main(["ctl", "--socket", str(self.path), *arguments])
        captured = self.capsys.readouterr()
        assert (code, captured.err) == (0, "")
        return [" ".join(line.split()) for line in captured.out.splitlines()]


@pytest.fixture
def house(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[House]:
    stage, bank, gate, path = NullStage(10), Bank(1 << 20), Gate(), tmp_path / "admin.sock"

    def seat(model: ModelSettings) -> Slot:
        first = model.id == "a"
        step = gate if first else None
        return seated_slot(model, stage, size=10, on=first, bank=bank, regions=4, before_step=step)

    with (
        listen_at(path) as door,
        serve(
            [ModelSettings(id="a", path=Path("a.gguf"), default=True), ModelSettings(id="b", path=Path("b"))],
            admin=[(door, None)],
            open_one=seat,
            parts={"bank": bank, "tier": stage.status, "release": stage.reservations.release},
            switch=SwitchSettings(min_hold_s=600, max_wait_s=600),
        ) as live,
    ):
        try:
            yield House(live, gate, path, capsys)
        finally:
            gate.open()


def test_a_stream_pauses_for_a_switch_and_goes_on_when_its_model_is_back(house: House) -> None:
    with closing(house.live.send("/v1/completions", REQUEST)) as stream:
        stream.settimeout(LONG_WAIT_S)
        wait_until(lambda: house.live.engine.snapshot.models["a"].running == 1)
        (operation,) = house.ctl("switch", "b", "--no-wait")
        wait_until(lambda: house.live.engine.snapshot.switch is not None)
        status = house.ctl("status")
        assert status[2].startswith("a gpu:resident leaving ")
        assert status[4].startswith("a switch is under way: b comes, a goes; pause after ")

        house.gate.step(2)
        lines = house.ctl("operations", operation)
        table = lines[lines.index("b is on the GPU") + 1 :]
        assert table[0] == "phase ms"
        assert [line.split()[0] for line in table[2:-1]] == PHASES
        seats = [line.split()[:3] for line in house.ctl("status")[2:4]]
        assert seats == [["a", "gpu:resident", "away"], ["b", "gpu:resident", "on"]]
        _, session, why = house.ctl("sessions")
        assert " a bank away " in session
        assert why.startswith("away: ")
        assert "b was on the GPU already" in house.ctl("switch", "b")

        house.gate.open()
        last = json.loads("".join(house.ctl("switch", "a", "--json")))
        assert (last["state"], last["model"]) == ("done", "a")
        received = b""
        while b"[DONE]" not in received:
            received += stream.recv(65536)
        assert b'"finish_reason":"length"' in received
