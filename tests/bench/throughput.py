"""tierd against llama.cpp on the same files, with the same number of threads, taking turns in one run.

Usage: python tests/bench/throughput.py [--rounds N] [--files NAME,...] [--levels LEVEL,...] [--threads N] ...

Each side runs in a process of its own that waits while it is not its turn. A round opens the model anew,
reads a prompt, goes on with one stream and then with several; all prompts are random tokens, new in every
round, the same for all sides. One round goes before those that count. tierd is measured through its
scheduler and sampler, llama.cpp through llama-cpp-python's C functions with one batch for all streams.
Then each side fills the context of all its streams once more, in a new process whose memory is watched.

A table goes to the terminal, everything measured to a file in tests/bench/results; tables.py makes the
README's table of the newest one.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import record
import tables
from child import Child
from contest import LLAMA, Contest, add_amounts, amounts, load_arguments
from memory import Peak, status
from tierd.backends import library
from tierd.backends.cores import usable_cores

HERE = Path(__file__).resolve().parent
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class Model:
    """title: as tables name it. file: in the models' folder. ftype: what SMOLLM2 is requantised as for it."""

    title: str
    file: str
    ftype: str = ""


MODELS = {
    "q4_1": Model("SmolLM2 135M Q4_1", SMOLLM2),
    "q4_0": Model("SmolLM2 135M Q4_0", "bench/SmolLM2-135M-Instruct.Q4_0.gguf", "Q4_0"),
    "q8_0": Model("SmolLM2 135M Q8_0", "bench/SmolLM2-135M-Instruct.Q8_0.gguf", "Q8_0"),
    "q4_k_m": Model("SmolLM2 135M Q4_K_M", "bench/SmolLM2-135M-Instruct.Q4_K_M.gguf", "Q4_K_M"),
    "gemma3": Model("Gemma 3 270M Q4_K_M", "gemma-3-270m-q4_k_m.gguf"),
}


def prepare(model: Model, folder: Path, llama_python: str) -> Path:
    """Return a model's file, requantised if it is not there yet."""
    path = folder / model.file
    if model.ftype and not path.exists():
        print(f"requantising {path.name}", file=sys.stderr)
        script = [llama_python, str(HERE / "requantise.py"), str(folder / SMOLLM2), str(path), model.ftype]
        subprocess.run(script, check=True, capture_output=True)
    if not path.is_file():
        raise SystemExit(f"{path} is missing; `make models` fetches it")
    return path


def memory(options: argparse.Namespace, path: Path, start: Callable[[], Child]) -> dict[str, int]:
    """Return bytes: what a side takes to fill the context of all streams."""
    with start() as child, Peak(child.pid) as peak:
        answer = child.ask("load", **load_arguments(options, path))
        draw = random.Random(0)
        # An answer long enough that no stream ends, and gives its memory to others, before all are there.
        tokens = options.context // 8
        length = options.context - tokens
        prompts = [draw.choices(range(answer["vocabulary"]), k=length) for _ in range(options.streams)]
        child.ask("fill", prompts=prompts, tokens=tokens)
        now = status(child.pid)
    return {
        "peak_private": peak.bytes,
        "high_water": now["VmHWM"],
        "mapped": now["RssFile"],
        "page_pool": answer.get("page_pool", 0),
    }


def sides(levels: list[str], llama_python: str) -> tuple[dict[str, Callable[[], Child]], dict[str, Any]]:
    """Return how to start each side, and what each says of itself. Levels that are not there are named."""
    starts: dict[str, Callable[[], Child]] = {}
    about: dict[str, Any] = {}
    for level in levels:
        environment = {} if level == "best" else {"HOSTKERNELS_LEVEL": level}

        def start(environment: dict[str, str] = environment) -> Child:
            return Child([sys.executable, str(HERE / "tierd_side.py")], environment)

        with start() as child:
            said = child.ask("about")
        if level not in ("best", said["level"]):
            print(f"not run: this machine has no {level}")
            continue
        starts[f"tierd {said['level']}"] = start
        about[f"tierd {said['level']}"] = said
    starts[LLAMA] = lambda: Child([llama_python, str(HERE / "llama_side.py")], {})
    with starts[LLAMA]() as child:
        about[LLAMA] = child.ask("about")
    print(f"{LLAMA}: {about[LLAMA]['system_info']}", flush=True)
    return starts, about


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--files", default=",".join(MODELS), help=f"which of {','.join(MODELS)} (all)")
    add("--levels", default="best,avx2", help=f"best, or of {','.join(library.LEVELS)} (best,avx2)")
    add_amounts(parser, rounds=5, threads=usable_cores(), prefill=512, prompt=128, tokens=128, streams=8,
        context=1024)  # fmt: skip
    add("--models", type=Path, default=machine.REPOSITORY / ".models", help="folder of the model files")
    add("--llama-python", default=str(machine.REPOSITORY / ".venv-bench" / "bin" / "python"),
        help="a Python that has llama-cpp-python")  # fmt: skip
    add("--results", type=Path, default=HERE / "results", help="folder of the results")
    options = parser.parse_args()
    options.files, options.levels = options.files.split(","), options.levels.split(",")
    for name in options.files:
        if name not in MODELS:
            parser.error(f"--files: {name} is none of {', '.join(MODELS)}")
    for level in options.levels:
        if level not in ("best", *library.LEVELS):
            parser.error(f"--levels: {level} is none of best, {', '.join(library.LEVELS)}")
    return options


def main() -> int:
    options = parse()
    started = record.now()
    starts, about = sides(options.levels, options.llama_python)
    contest = Contest(options, starts)
    files = []
    for name in options.files:
        model = MODELS[name]
        path = prepare(model, options.models, options.llama_python)
        print(f"measuring {model.title}", file=sys.stderr)
        achieved: dict[str, dict[str, Any]] = dict(contest.measure(path))
        for side, start in starts.items():
            achieved[side]["memory"] = memory(options, path, start)
        files.append(record.describe(model.title, path) | {"sides": achieved})
    measured = {"sides": about, "files": files}
    result, path = record.write(options.results, started, amounts(options), measured)
    print(tables.HOST.plain(result))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
