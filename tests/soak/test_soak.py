"""A daemon that runs on and on under mixed traffic holds no more at the end than it did at the beginning."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from hostile.daemon import Daemon, daemon
from soak.town import Town
from tiny import write_llama

# Two models that take turns on a software device, and one that it cannot have, for how its K/V is kept.
MODELS = ("one", "two", "host")
SETTINGS = """
reader_backlog = 16
reader_timeout_s = 1.0
[log]
level = "warning"
[gpu]
allow_software = true
vram_limit_mb = 8
[switch]
min_hold_s = 0.2
max_wait_s = 1.0
[kv]
memory_mb = 12
bank_mb = 2
[responses]
capacity = 20
memory_mb = 1
""" + "".join(
    f'[[models]]\nid = "{id}"\npath = "{id}.gguf"\ncontext = 1024\nstreams = 3\n'
    f'kv_dtype = "{"f32" if id == "host" else "f16"}"\n'
    for id in MODELS
)
ROUND_S, SETTLE_S = 15.0, 30.0
# Each model may have a process for its template and one for grammars, and one of either may be leaving; one
# more is for rails.
CHILDREN = 3 * len(MODELS) + 1
Note = Callable[[str, object], None]


def holdings(served: Daemon) -> dict[str, int]:
    """Return what the process holds: bytes that are no file's, threads, processes of its own, and descriptors
    beside the one that each of these has.
    """
    process = Path(f"/proc/{served.process.pid}")
    anonymous = re.search(r"RssAnon:\s+(\d+) kB", (process / "status").read_text())
    assert anonymous is not None
    children = sum(len(file.read_text().split()) for file in process.glob("task/*/children"))
    return {
        "memory": int(anonymous[1]) * 1024,
        "descriptors": served.descriptors - children,
        "threads": len(list((process / "task").iterdir())),
        "children": children,
    }


def rest(town: Town) -> None:
    """Wait until nobody is served, all connections are closed and every model is there."""
    until = time.monotonic() + SETTLE_S
    with town.admin() as client:
        while True:
            status = client.get("/status").json()
            busy = sum(model["running"] + model["waiting"] for model in status["models"])
            if not busy and status["switch"] is None and len(status["models"]) == len(MODELS):
                break
            assert time.monotonic() < until, status
            time.sleep(0.05)
    time.sleep(1.0)  # what has been asked for on the way is closed, freed and joined


@pytest.mark.parametrize(
    ("minutes", "share"),
    [
        pytest.param(2, 0.25, id="minutes", marks=pytest.mark.timeout(600)),
        pytest.param(60, 0.03, id="hour", marks=[pytest.mark.soak, pytest.mark.timeout(3 * 3600)]),
    ],
)
def test_nothing_grows(minutes: int, share: float, tmp_path: Path, record_property: Note) -> None:
    """share: how much more memory the last third of the rounds may hold than the one before, on the median.

    Within minutes pools and caches still fill.
    """
    for seed, id in enumerate(MODELS):
        write_llama(tmp_path / f"{id}.gguf", context=1024, seed=seed)
    with daemon(tmp_path, SETTINGS) as served:
        town = Town(served, MODELS, seed=minutes)
        held = []
        for _ in range(int(minutes * 60 / ROUND_S)):
            town.live(ROUND_S)
            rest(town)
            held.append(holdings(served))
    record_property("did", dict(sorted(town.did.items())))
    record_property("held", held)
    assert sum(count for what, count in town.did.items() if what.endswith(" 200")) > 100 * minutes
    assert town.did["/models/activate 200"] >= 3 * minutes
    third = len(held) // 3
    early, late = held[third : 2 * third], held[-third:]
    memory = [median(each["memory"] for each in part) for part in (early, late)]
    assert memory[1] <= memory[0] * (1 + share), held
    for what in ("descriptors", "threads", "children"):
        # Now and then one is about to be closed; what is kept for good lifts the least.
        assert min(each[what] for each in late) <= max(each[what] for each in early), held
    assert median(each["children"] for each in held) <= CHILDREN, held
