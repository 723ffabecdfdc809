"""Models that take turns: how soon a conversation goes on, what a switch takes, and who is kept waiting.

Usage: python tests/bench/switching.py [--tiers cpu,device] [--conversation N] [--returns N] [--calls N] ...

Two models are served over HTTP, on the CPU and then on a Vulkan device whose memory is limited so that it
holds only one of them (a program on the processor counts). On each a conversation is held with one model:
its first prompt is read cold, then requests to the other model and its own next turns alternate, and the time
to the first token of these is what is measured. Then, on the device, an administrator switches between the
models while a stream of the conversation runs. At last the admin API and /metrics are called again and again
while models are loaded and switched.

Tables go to the terminal, everything measured to a file in tests/bench/results/switching; tables.py makes
the README's tables of the newest one. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import machine
import record
from served import Served, call, settings
from switching_tables import CALLS, FOLDER, PHASES, RETURNS
from throughput import MODELS

FILES = ("q4_1", "gemma3")
WORDS = ("river", "stone", "garden", "letter", "winter", "music", "market", "island", "bridge", "silver")
THIRD = "third"  # the name of the model that is loaded and unloaded
PATHS = ("/status", "/tier", "/slots", "/sessions", "/regions", "/passes", "/metrics")
TURN, ANSWER = 16, 8  # tokens of a question after the first, and of an answer
PAUSE_S = 0.005  # between calls, so that they meet many loads and switches
MIB = 1 << 20
RETURN_S, RETURN_SHARE, CALL_S = 0.150, 0.1, 0.050  # the bars

OFF = "gpu.mode = 'off'"
ON = "gpu.mode = 'resident'\ngpu.allow_software = true"


class Talk:
    """A conversation with one model, of random words. served: by whom."""

    def __init__(self, served: Served, model: str, seed: int) -> None:
        self._served, self.model = served, model
        self._draw = random.Random(seed)
        self.tokens: list[int] = []

    def ask(self, tokens: int) -> None:
        """Add a question of so many tokens."""
        words = "".join(f" {word}" for word in self._draw.choices(WORDS, k=tokens))
        self.tokens += self._tokens(words)[:tokens]

    def answer(self) -> dict[str, Any]:
        """Have the question answered; return what that took."""
        answer = self._served.complete(self.model, self.tokens, ANSWER)
        self.tokens += self._tokens(answer.text)
        return {"first": round(answer.first_s, 4), "prompt": answer.prompt, "cached": answer.cached}

    def _tokens(self, text: str) -> list[int]:
        body = {"model": self.model, "content": text}
        tokens: list[int] = self._served.post("/tokenize", body, public=True)["tokens"]
        return tokens


def converse(
    served: Served, model: str, other: str, options: argparse.Namespace
) -> tuple[Talk, dict[str, Any]]:
    """Hold a conversation with a model while another is asked in between; return what its turns took."""
    for name in (other, model):  # what is made at first use is made
        between = Talk(served, name, 0)
        between.ask(TURN)
        between.answer()
    talk = Talk(served, model, 1)
    talk.ask(options.conversation)
    cold = talk.answer()
    returns, others = [], []
    for number in range(options.returns):
        between = Talk(served, other, 2 + number)
        between.ask(TURN)
        others.append(between.answer())
        talk.ask(TURN)
        returns.append(talk.answer())
    return talk, {"model": model, "other": other, "cold": cold, "returns": returns, "between": others}


def switch(served: Served, talk: Talk, other: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Switch to another model and back while a stream of the conversation runs; return what phases took."""
    switches = []
    talk.ask(TURN)
    with served.streaming(talk.model, talk.tokens, options.tokens):
        for number in range(2 * options.returns):
            came, left = (talk.model, other) if number % 2 else (other, talk.model)
            done = activate(served, came)
            phases = {phase["name"]: phase["seconds"] for phase in done["phases"]}
            switches.append({"came": came, "left": left, "seconds": done["seconds"], "phases": phases})
    return switches


def activate(served: Served, model: str) -> Any:
    """Bring a model to the device; return the operation."""
    return served.post("/models/activate?wait=true", {"model": model})


class Work:
    """Loads and switches in the background, one after the other.

    path: of a model that is loaded and unloaded. device: whether there is one. doing: "load" or "switch"
    while one is under way, else "".
    """

    def __init__(self, served: Served, models: list[str], path: Path, *, device: bool) -> None:
        self.doing = ""
        self._served, self._models, self._path, self._device = served, models, path, device
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._done = self._pool.submit(self._run)

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._pool.shutdown()

    def check(self) -> None:
        """Raise what went wrong, if anything has."""
        if self._done.done():
            self._done.result()

    def _run(self) -> None:
        while not self._over.is_set():
            for model in self._models if self._device else ():
                with self._during("switch"):
                    activate(self._served, model)
            body = {"id": THIRD, "path": str(self._path), "context": 512, "activate": self._device}
            with self._during("load"):
                self._served.post("/models/load?wait=true", body)
            self._served.post("/models/unload?wait=true", {"model": THIRD})

    @contextlib.contextmanager
    def _during(self, what: str) -> Iterator[None]:
        self.doing = what
        try:
            yield
        finally:
            self.doing = ""


def call_meanwhile(served: Served, work: Work, calls: int) -> dict[str, Any]:
    """Call each path so often while a load or a switch is under way; return how long that took."""
    took: dict[str, list[float]] = {path: [] for path in PATHS}
    during = {"load": 0, "switch": 0}
    with contextlib.closing(served.admin()) as admin, contextlib.closing(served.public()) as public:
        for path in itertools.cycle(PATHS):
            work.check()
            doing = work.doing
            began = time.perf_counter()
            call(public if path == "/metrics" else admin, "GET", path)
            seconds = time.perf_counter() - began
            if doing and len(took[path]) < calls:
                took[path].append(seconds)
                during[doing] += 1
            if all(len(found) == calls for found in took.values()):
                break
            time.sleep(PAUSE_S)
    return {
        "during": during,
        "paths": {
            path: {"p50": share(found, 0.5), "p99": share(found, 0.99), "most": share(found, 1.0)}
            for path, found in took.items()
        },
    }


def share(found: list[float], part: float) -> float:
    """Return what so large a part of the figures does not exceed."""
    return round(sorted(found)[math.ceil(part * len(found)) - 1], 6)


def measure(options: argparse.Namespace, models: dict[str, Path], *, device: bool) -> dict[str, Any]:
    """Return what is measured on one tier."""
    names, result = list(models), {}
    sections = OFF
    if device:
        sections = f"{ON}\ngpu.vram_limit_mb = {limit(options, models)}"
    with serving(options, models, sections) as served:
        tier = served.get("/tier")
        if device and len(tier["reservations"]) != 1:
            raise SystemExit(f"the device does not hold one model alone: {tier}")
        result["device"] = tier["device"]
        result["conversations"], result["switches"] = [], []
        for model, other in (names, names[::-1]):
            print(f"talking to {model}", file=sys.stderr)
            talk, took = converse(served, model, other, options)
            result["conversations"].append(took)
            if device and model == names[0]:
                print("switching", file=sys.stderr)
                result["switches"] = switch(served, talk, other, options)
        print(f"calling {', '.join(PATHS)}", file=sys.stderr)
        live = Talk(served, names[0], 0)
        live.ask(TURN)
        with (
            served.streaming(live.model, live.tokens, options.tokens),
            Work(served, names, models[names[0]], device=device) as work,
        ):
            result["calls"] = call_meanwhile(served, work, options.calls)
    return result


def limit(options: argparse.Namespace, models: dict[str, Path]) -> int:
    """Return MiB of a device's memory that hold each model, but not both."""
    with serving(options, models, ON) as served:
        tier = served.get("/tier")
    sizes = sorted(tier["reservations"].values())
    if len(sizes) != len(models):
        raise SystemExit(f"the device does not hold both models even without a limit: {tier}")
    return math.ceil((sizes[-1] + sizes[0] // 4) / MIB)


@contextlib.contextmanager
def serving(options: argparse.Namespace, models: dict[str, Path], sections: str) -> Iterator[Served]:
    """Have the models served."""
    context = options.conversation + 2 * options.returns * (2 * TURN + ANSWER) + options.tokens + 256
    with (
        tempfile.TemporaryDirectory() as folder,
        Served(Path(folder), settings(list(models.items()), sections, context=context)) as served,
    ):
        yield served


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--tiers", default="cpu,device", help="which of cpu,device (cpu,device)")
    add("--conversation", type=int, default=1600, help="tokens before the first return (1600)")
    add("--returns", type=int, default=5, help="returns, and switches there and back (5)")
    add("--tokens", type=int, default=256, help="tokens of a stream that runs through switches (256)")
    add("--calls", type=int, default=500, help="calls of each path (500)")
    add("--models", type=Path, default=machine.REPOSITORY / ".models", help="folder of the model files")
    add("--results", type=Path, default=FOLDER, help="folder of the results")
    options = parser.parse_args()
    options.tiers = options.tiers.split(",")
    for tier in options.tiers:
        if tier not in ("cpu", "device"):
            parser.error(f"--tiers: {tier} is none of cpu, device")
    return options


def main() -> int:
    options = parse()
    started = record.now()
    models = {name: options.models / MODELS[name].file for name in FILES}
    for path in models.values():
        if not path.is_file():
            raise SystemExit(f"{path} is missing; `make models` fetches it")
    amounts = {name: getattr(options, name) for name in ("conversation", "returns", "tokens", "calls")}
    measured = {tier: measure(options, models, device=tier == "device") for tier in options.tiers}
    files = [record.describe(MODELS[name].title, path) | {"id": name} for name, path in models.items()]
    result, path = record.write(options.results, started, amounts, {"tiers": measured, "files": files})
    for table in (RETURNS, PHASES, CALLS) if "device" in measured else (RETURNS, CALLS):
        print(f"{table.plain(result)}\n")
    print(f"written to {path}")
    return judge(measured)


def judge(measured: dict[str, Any]) -> int:
    """Say which bars are met; return the exit code."""
    bars = []
    for tier, result in measured.items():
        for talk in result["conversations"]:
            seconds = statistics.median(turn["first"] for turn in talk["returns"])
            bar = RETURN_S if tier == "cpu" else RETURN_SHARE * talk["cold"]["first"]
            bars.append((f"{tier}: first token of a return to {talk['model']}", seconds, bar))
        slowest = max(result["calls"]["paths"].values(), key=lambda path: path["p99"])
        bars.append((f"{tier}: 99 of 100 calls", slowest["p99"], CALL_S))
    for what, seconds, bar in bars:
        met = "met" if seconds <= bar else "MISSED"
        print(f"{what} {1000 * seconds:,.0f} ms; the bar is {1000 * bar:,.0f} ms: {met}")
    return 0 if all(seconds <= bar for _, seconds, bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
