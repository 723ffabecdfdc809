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
import datetime
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import tables
from child import Child
from memory import Peak, status
from tierd.backends import library
from tierd.backends.host import usable_cores
from tierd.models import GGUFFile

HERE = Path(__file__).resolve().parent
LLAMA = "llama.cpp"
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
REST_S = 0.1  # between turns, for the other side's threads to fall asleep


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


def weights(path: Path) -> dict[str, int]:
    """Return the bytes of a file's tensors by format."""
    sizes: dict[str, int] = {}
    with GGUFFile.open(path) as file:
        for tensor in file.tensors.values():
            sizes[tensor.format.name] = sizes.get(tensor.format.name, 0) + tensor.nbytes
    return sizes


class Contest:
    """All sides, and the rounds that they run. sides: starts a process of the side of that name."""

    def __init__(self, options: argparse.Namespace, sides: Mapping[str, Callable[[], Child]]) -> None:
        self._options = options
        self._sides = sides

    def measure(self, path: Path) -> dict[str, dict[str, Any]]:
        """Return what every side achieves with a file, by side: see `tables` for the names."""
        with ExitStack() as stack:
            children = {name: stack.enter_context(start()) for name, start in self._sides.items()}
            results: dict[str, dict[str, Any]] = {name: {} for name in children}
            for number in range(self._options.rounds + 1):
                figures = self._round(path, number, children)
                for name, result in results.items() if number else ():
                    for measure, figure in figures[name].items():
                        result.setdefault(measure, []).append(round(figure, 3))
        for name, start in self._sides.items():
            results[name]["memory"] = self._memory(path, start)
        return results

    def _round(self, path: Path, number: int, children: Mapping[str, Child]) -> dict[str, dict[str, float]]:
        """Return seconds for "load", tokens per second for the others."""
        options = self._options
        figures: dict[str, dict[str, float]] = {name: {} for name in children}
        draw = random.Random(number)
        vocabulary = 0
        for child, figure in self._turns(number, children, figures):
            answer = child.ask("load", **self._seat(path))
            figure["load"], vocabulary = answer["seconds"], answer["vocabulary"]
            child.ask("decode", prompts=[[1]], tokens=2)  # what is made at first use is made
        prompt = draw.choices(range(vocabulary), k=options.prefill)
        for child, figure in self._turns(number, children, figures):
            figure["prefill"] = options.prefill / child.ask("prefill", prompt=prompt)
        for measure, streams in (("decode_one", 1), ("decode_many", options.streams)):
            prompts = [draw.choices(range(vocabulary), k=options.prompt) for _ in range(streams)]
            for child, figure in self._turns(number, children, figures):
                seconds = child.ask("decode", prompts=prompts, tokens=options.tokens)
                figure[measure] = streams * options.tokens / seconds
        return figures

    def _turns(self, number: int, children: Mapping[str, Child], figures: dict[str, dict[str, float]]) -> Any:
        """Yield each side with its figures; who begins changes from round to round."""
        names = list(children)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(REST_S)
            yield children[name], figures[name]

    def _memory(self, path: Path, start: Callable[[], Child]) -> dict[str, int]:
        """Return bytes: what a side takes to fill the context of all streams."""
        options = self._options
        with start() as child, Peak(child.pid) as peak:
            answer = child.ask("load", **self._seat(path))
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

    def _seat(self, path: Path) -> dict[str, Any]:
        options = self._options
        return {
            "path": str(path),
            "threads": options.threads,
            "context": options.context,
            "streams": options.streams,
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
    add("--rounds", type=int, default=5, help="rounds that count (5)")
    add("--files", default=",".join(MODELS), help=f"which of {','.join(MODELS)} (all)")
    add("--levels", default="best,avx2", help=f"best, or of {','.join(library.LEVELS)} (best,avx2)")
    add("--threads", type=int, default=usable_cores(), help="of each side (the usable cores)")
    add("--prefill", type=int, default=512, help="tokens of the prompt that is timed (512)")
    add("--prompt", type=int, default=128, help="tokens of the prompts before a timed decode (128)")
    add("--tokens", type=int, default=128, help="tokens that a timed decode adds to each stream (128)")
    add("--streams", type=int, default=8, help="streams decoded together (8)")
    add("--context", type=int, default=1024, help="positions of one stream (1024)")
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
    started = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    starts, about = sides(options.levels, options.llama_python)
    contest = Contest(options, starts)
    files = []
    for name in options.files:
        model = MODELS[name]
        path = prepare(model, options.models, options.llama_python)
        print(f"measuring {model.title}", file=sys.stderr)
        files.append({
            "title": model.title,
            "file": path.name,
            "bytes": path.stat().st_size,
            "weights": weights(path),
            "sides": contest.measure(path),
        })  # fmt: skip
    measured = ("rounds", "threads", "prefill", "prompt", "tokens", "streams", "context")
    result = {
        "date": started.isoformat(),
        "commit": machine.commit(),
        "machine": machine.describe(),
        "options": {name: getattr(options, name) for name in measured},
        "sides": about,
        "files": files,
    }
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"{started:%Y-%m-%d-%H%M%S}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(tables.plain(result))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
