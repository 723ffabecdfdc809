"""tierd against llama.cpp's Vulkan backend: the same file on the same Vulkan device, taking turns in one run.

Usage: python tests/bench/device_throughput.py [--rounds N] [--prefill N] [--llama-device N] ...

Rounds are those of throughput.py; memory is not watched. The defaults are for a device that is a program on
the processor, where llama.cpp reads 8 tokens a second; ask for more of a GPU. tierd is measured through its
tier, scheduler and sampler, with a step submitted before the last one is collected, llama.cpp through
cyllama's classes with one batch for all streams.

A table goes to the terminal, everything measured to a file in tests/bench/results/device; tables.py makes
the README's table of the newest one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import record
import tables
from child import Child
from contest import LLAMA, Contest, add_amounts, amounts
from throughput import MODELS
from tierd.backends.cores import usable_cores

HERE = Path(__file__).resolve().parent
MODEL = MODELS["q4_1"]
TIERD = "tierd"
BAR = 3.0  # times llama.cpp's rate, at a prompt and at one stream


def sides(options: argparse.Namespace) -> tuple[dict[str, Callable[[], Child]], dict[str, Any]]:
    """Return how to start each side, and what each says of itself. Both must be on one device."""
    starts: dict[str, Callable[[], Child]] = {
        TIERD: lambda: Child([sys.executable, str(HERE / "tierd_side.py"), "--device"], {}),
        LLAMA: lambda: Child(
            [options.llama_python, str(HERE / "llama_vulkan_side.py")],
            {"GGML_VK_VISIBLE_DEVICES": str(options.llama_device)},
        ),
    }
    about = {}
    for name, start in starts.items():
        with start() as child:
            about[name] = child.ask("about")
    ours, theirs = about[TIERD]["device"]["name"], about[LLAMA]["device"]
    if ours != theirs:
        raise SystemExit(f"tierd is on {ours}, llama.cpp on {theirs}: choose with --llama-device")
    print(f"{LLAMA}: {about[LLAMA]['line']}", flush=True)
    return starts, about


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add_amounts(parser, rounds=3, threads=usable_cores(), prefill=128, prompt=8, tokens=8, streams=8,
        context=256)  # fmt: skip
    add("--llama-device", type=int, default=0, help="llama.cpp's number for the device (0)")
    add("--models", type=Path, default=machine.REPOSITORY / ".models", help="folder of the model file")
    add("--llama-python", default=str(machine.REPOSITORY / ".venv-bench-vulkan" / "bin" / "python"),
        help="a Python that has cyllama-vulkan")  # fmt: skip
    add("--results", type=Path, default=tables.DEVICE.folder, help="folder of the results")
    return parser.parse_args()


def main() -> int:
    options = parse()
    started = record.now()
    path = options.models / MODEL.file
    if not path.is_file():
        raise SystemExit(f"{path} is missing; `make models` fetches it")
    starts, about = sides(options)
    achieved = Contest(options, starts).measure(path)
    measured = {"sides": about, "files": [record.describe(MODEL.title, path) | {"sides": achieved}]}
    result, written = record.write(options.results, started, amounts(options), measured)
    print(tables.DEVICE.plain(result))
    print(f"written to {written}")
    return judge(achieved)


def judge(achieved: dict[str, dict[str, list[float]]]) -> int:
    """Say whether the bar is met; return the exit code."""
    times = {
        measure: statistics.median(achieved[TIERD][measure]) / statistics.median(achieved[LLAMA][measure])
        for measure in ("prefill", "decode_one")
    }
    met = min(times.values()) >= BAR
    said = ", ".join(f"{measure} {ratio:.1f}" for measure, ratio in times.items())
    print(f"{said} times llama.cpp's; the bar is {BAR:g}: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
