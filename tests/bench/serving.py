"""tierd against llama.cpp's server over HTTP: the same file and threads, several clients at once, in turns.

Usage: python tests/bench/serving.py [--clients 1,4,8,16,32] [--rounds N] [--tokens N] [--prompt WORDS] ...

Both servers run all the time, but only one of them has work. All clients of a load ask at the same moment,
each for the likeliest tokens behind a prompt of its own, new in every round, the same for both sides; what is
measured is what arrives. One round of few tokens goes before those that count. llama.cpp's server is
llama-server where that is installed, else llama-cpp-python's.

Then second turns of conversations with tierd are compared with fresh prompts of as many new tokens, in turns.

A table goes to the terminal, everything measured to a file in tests/bench/results/serving; tables.py makes
the README's table of the newest one. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
import record
from contest import LLAMA, REST_S
from llama_served import LlamaServed
from served import Served, events, settings
from serving_tables import FOLDER, SERVING, TIERD, ratio, turns
from switching import WORDS, Talk, share
from throughput import MODELS
from tierd.backends.cores import usable_cores

WARM = 4  # tokens of each stream in the round that does not count
ROOM = 64  # positions beyond those that are asked for
BAR_CLIENTS, BAR_RATIO, BAR_TURN = 8, 3.0, 1.5

Server = Served | LlamaServed


@dataclass
class Stream:
    """What a client saw: when it asked, when texts came, how many tokens these were."""

    asked: float = 0.0
    times: list[float] = field(default_factory=list)
    tokens: int = 0


@dataclass
class Figures:
    """Of a side with one number of clients: tokens per second by round, seconds that clients waited."""

    rates: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    tokens: int = 0

    def add(self, streams: list[Stream]) -> None:
        """Add a round's."""
        seconds = max(stream.times[-1] for stream in streams) - min(stream.asked for stream in streams)
        came = sum(stream.tokens for stream in streams)
        self.tokens += came
        self.rates.append(round(came / seconds, 3))
        for stream in streams:
            self.first.append(stream.times[0] - stream.asked)
            self.gap += [after - before for before, after in itertools.pairwise(stream.times)]

    def summary(self) -> dict[str, Any]:
        """Return what is recorded."""
        waits = {
            name: {"p50": share(found, 0.5), "p99": share(found, 0.99)}
            for name, found in (("first", self.first), ("gap", self.gap))
        }
        return {"rates": self.rates, "tokens": self.tokens, **waits}


def take(server: Server, body: dict[str, Any], start: threading.Barrier) -> Stream:
    """Take one stream to its end."""
    stream, finish = Stream(), None
    with contextlib.closing(server.public()) as connection:
        connection.connect()
        start.wait()
        stream.asked = time.perf_counter()
        for event in events(connection, body):
            for choice in event["choices"]:
                if choice["text"]:
                    stream.times.append(time.perf_counter())
                finish = choice["finish_reason"] or finish
    if not stream.times:
        raise SystemExit(f"a stream ended without a text: {finish}")
    # A text may be several tokens, so they are counted only where an end of the text came first.
    stream.tokens = body["max_tokens"] if finish == "length" else len(stream.times)
    return stream


def load(server: Server, model: str, prompts: list[str], tokens: int) -> list[Stream]:
    """Have all prompts answered at the same time."""
    start = threading.Barrier(len(prompts))
    body = {"model": model, "max_tokens": tokens, "temperature": 0, **server.lasting(tokens)}
    with ThreadPoolExecutor(len(prompts)) as pool:
        streams = [pool.submit(take, server, body | {"prompt": prompt}, start) for prompt in prompts]
        return [stream.result() for stream in streams]


def compete(servers: dict[str, Server], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what each server achieves with each number of clients."""
    figures = {clients: {name: Figures() for name in servers} for clients in options.clients}
    for number in range(options.rounds + 1):
        print(f"round {number} of {options.rounds}", file=sys.stderr)
        names = list(servers) if number % 2 else list(servers)[::-1]
        for clients, sides in figures.items():
            draw = random.Random(f"{number} {clients}")
            prompts = [" ".join(draw.choices(WORDS, k=options.prompt)) for _ in range(clients)]
            for name in names:
                time.sleep(REST_S)
                streams = load(servers[name], options.file, prompts, options.tokens if number else WARM)
                if number:
                    sides[name].add(streams)
    return [
        {"clients": clients, "sides": {name: side.summary() for name, side in sides.items()}}
        for clients, sides in figures.items()
    ]


def converse(served: Served, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what second turns take, and fresh prompts of as many tokens as these had to feed.

    The first of each does not count.
    """
    found = []
    for number in range(options.turns + 1):
        talk, fresh = (Talk(served, options.file, 2 * number + which) for which in range(2))
        talk.ask(options.turn)
        talk.answer()
        talk.ask(options.prompt)
        second = talk.answer()
        fresh.ask(second["prompt"] - second["cached"])
        found.append({"second": second, "fresh": fresh.answer()})
    return found[1:]


def measure(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return all that is measured of a file."""
    threads, streams = options.threads, max(options.clients)
    # A word is rarely more than two tokens.
    short = 2 * options.prompt + options.tokens + ROOM
    sections = f"engine.threads = {threads}\ngpu.mode = 'off'"
    models = [(options.file, path)]
    with (
        tempfile.TemporaryDirectory() as folder,
        Served(
            Path(folder), settings(models, sections, context=options.turn + short, streams=streams)
        ) as served,
        LlamaServed(options.llama_python, path, threads=threads, context=short, streams=streams) as rival,
    ):
        loads = compete({TIERD: served, LLAMA: rival}, options)
        print("talking", file=sys.stderr)
        talks = converse(served, options)
    server = {"name": rival.name, "version": rival.version, "one_at_a_time": rival.one_at_a_time}
    return {"server": server, "loads": loads, "turns": talks}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--clients", default="1,4,8,16,32", help="how many at once, one after the other (1,4,8,16,32)")
    add("--rounds", type=int, default=3, help="rounds that count (3)")
    add("--threads", type=int, default=usable_cores(), help=f"of each side ({usable_cores()})")
    add("--prompt", type=int, default=100, help="words of a prompt, tokens of a second turn (100)")
    add("--tokens", type=int, default=64, help="tokens of an answer (64)")
    add("--turn", type=int, default=1500, help="tokens of a first turn (1500)")
    add("--turns", type=int, default=5, help="conversations that count (5)")
    add("--file", default="q4_1", help=f"one of {','.join(MODELS)} (q4_1)")
    add("--models", type=Path, default=machine.REPOSITORY / ".models", help="folder of the model files")
    add("--llama-python", default=str(machine.REPOSITORY / ".venv-bench" / "bin" / "python"),
        help="a Python that has llama-cpp-python and what its server needs")  # fmt: skip
    add("--results", type=Path, default=FOLDER, help="folder of the results")
    options = parser.parse_args()
    options.clients = [int(clients) for clients in options.clients.split(",")]
    if options.file not in MODELS:
        parser.error(f"--file: {options.file} is none of {', '.join(MODELS)}")
    return options


def main() -> int:
    options = parse()
    started = record.now()
    model = MODELS[options.file]
    path = options.models / model.file
    if not path.is_file():
        raise SystemExit(f"{path} is missing; `make models` fetches it")
    names = ("rounds", "threads", "prompt", "tokens", "turn", "turns")
    measured = measure(path, options) | {"files": [record.describe(model.title, path)]}
    amounts = {name: getattr(options, name) for name in names}
    result, written = record.write(options.results, started, amounts, measured)
    print(SERVING.plain(result))
    print(f"written to {written}")
    return judge(result)


def judge(result: dict[str, Any]) -> int:
    """Say which bars are met; return the exit code."""
    bars = []
    for times in (ratio(load) for load in result["loads"] if load["clients"] == BAR_CLIENTS):
        said = f"{BAR_CLIENTS} clients: {times:.2f} times llama.cpp's tokens per second"
        bars.append((f"{said}; the bar is {BAR_RATIO:g}", times >= BAR_RATIO))
    second, fresh = turns(result)
    times = second / fresh
    said = f"first token of a second turn: {times:.2f} times a fresh prompt's"
    bars.append((f"{said}; the bar is {BAR_TURN:g}", times <= BAR_TURN))
    for said, met in bars:
        print(f"{said}: {'met' if met else 'MISSED'}")
    return 0 if all(met for _, met in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
