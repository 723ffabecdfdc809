"""Sides that take turns: each runs in a process of its own, which waits while it is not its turn."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from child import Child

LLAMA = "llama.cpp"
REST_S = 0.1  # between turns, for the other side's threads to fall asleep
# How much is done, by option.
AMOUNTS = {
    "rounds": "rounds that count",
    "threads": "of each side",
    "prefill": "tokens of the prompt that is timed",
    "prompt": "tokens of the prompts before a timed decode",
    "tokens": "tokens that a timed decode adds to each stream",
    "streams": "streams decoded together",
    "context": "positions of one stream",
}


class Contest:
    """All sides, and the rounds that they run: a model is opened, reads a prompt, then decodes streams.

    options: of the command line, those of AMOUNTS. sides: starts a process of the side of that name.
    """

    def __init__(self, options: argparse.Namespace, sides: Mapping[str, Callable[[], Child]]) -> None:
        self._options = options
        self._sides = sides

    def measure(self, path: Path) -> dict[str, dict[str, list[float]]]:
        """Return what every side achieves with a file, by side: see `tables` for the names."""
        with ExitStack() as stack:
            children = {name: stack.enter_context(start()) for name, start in self._sides.items()}
            results: dict[str, dict[str, list[float]]] = {name: {} for name in children}
            for number in range(self._options.rounds + 1):
                figures = self._round(path, number, children)
                for name, result in results.items() if number else ():
                    for measure, figure in figures[name].items():
                        result.setdefault(measure, []).append(round(figure, 3))
        return results

    def _round(self, path: Path, number: int, children: Mapping[str, Child]) -> dict[str, dict[str, float]]:
        """Return seconds for "load", tokens per second for the others."""
        options = self._options
        figures: dict[str, dict[str, float]] = {name: {} for name in children}
        draw = random.Random(number)
        vocabulary = 0
        for child, figure in self._turns(number, children, figures):
            answer = child.ask("load", **load_arguments(options, path))
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

    def _turns(
        self, number: int, children: Mapping[str, Child], figures: dict[str, dict[str, float]]
    ) -> Iterator[tuple[Child, dict[str, float]]]:
        """Yield each side with its figures; who begins changes from round to round."""
        names = list(children)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(REST_S)
            yield children[name], figures[name]


def add_amounts(parser: argparse.ArgumentParser, **defaults: int) -> None:
    """Add the options of AMOUNTS, with a default for each."""
    for name, what in AMOUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=defaults[name], help=f"{what} ({defaults[name]})")


def amounts(options: argparse.Namespace) -> dict[str, int]:
    """Return the options of AMOUNTS by name."""
    return {name: getattr(options, name) for name in AMOUNTS}


def load_arguments(options: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Return the arguments with which a side loads a file."""
    return {
        "path": str(path),
        "threads": options.threads,
        "context": options.context,
        "streams": options.streams,
    }
