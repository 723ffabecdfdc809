"""Make tables of the results of throughput.py and device_throughput.py.

Usage: python tests/bench/tables.py

Puts the tables of the newest results into the README, each between its marks. A result names for each file
and side: "load", seconds; "prefill", "decode_one" and "decode_many", tokens per second, one for each round;
"memory", bytes, where it was watched.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contest import LLAMA

HERE = Path(__file__).resolve().parent
README = HERE.parent.parent / "README.md"
RATES = ("prefill", "decode_one", "decode_many")
Result = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of the README. folder: of its results. name: in its marks. note: what stands below it."""

    folder: Path
    name: str
    note: Callable[[Result], str]

    @property
    def marks(self) -> tuple[str, str]:
        """Between which lines it stands."""
        return f"<!-- {self.name}: begin -->", f"<!-- {self.name}: end -->"

    def content(self) -> str:
        """Return the table of the newest result, "" where there is none: their names begin with the date."""
        results = sorted(self.folder.glob("*.json"))
        if not results:
            return ""
        return self.markdown(json.loads(results[-1].read_text(encoding="utf-8")))

    def markdown(self, result: Result) -> str:
        """Return the table of a result, and what was measured where."""
        heading, *body = rows(result)
        rule = ["---", *["---:"] * (len(heading) - 1)]
        lines = ["| " + " | ".join(row) + " |" for row in [heading, rule, *body]]
        return "\n".join(["", *lines, "", *_wrapped(self.note(result)), ""])

    def put(self, page: str) -> str:
        """Return a page with what stands between the marks replaced."""
        begin, end = self.marks
        whole = f"{begin}\n{self.content()}\n{end}"
        page, count = re.subn(
            f"{re.escape(begin)}\n.*?{re.escape(end)}", lambda _: whole, page, flags=re.DOTALL
        )
        if count != 1:
            raise SystemExit(f"the page must hold {begin} and {end} once")
        return page


def rows(result: Result) -> list[list[str]]:
    """Return a heading and a row for each side of each file. Rates are tokens per second."""
    options = result["options"]
    heading = ["", f"prompt of {options['prefill']}", "1 stream", f"{options['streams']} streams", "opens in"]
    body = [row for file in result["files"] for row in _file_rows(file)]
    if len(body[0]) > len(heading):
        heading.append("private memory")
    return [heading, *body]


def _file_rows(file: dict[str, Any]) -> Iterator[list[str]]:
    rival = file["sides"].get(LLAMA)
    for name, side in file["sides"].items():
        cells = []
        for measure in RATES:
            rate = statistics.median(side[measure])
            cell = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
            if rival is not None and side is not rival:
                cell += f" ({rate / statistics.median(rival[measure]):.2f})"
            cells.append(cell)
        cells.append(f"{statistics.median(side['load']):.2f} s")
        if "memory" in side:
            cells.append(f"{side['memory']['peak_private'] / 1e6:,.0f} MB")
        yield [f"{file['title']}, {name}", *cells]


def plain(result: Result) -> str:
    """Return the table for a terminal."""
    table = rows(result)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]) for first, *rest in table
    )


def _host_note(result: Result) -> str:
    options, llama = result["options"], result["sides"][LLAMA]
    return (
        f"{_medians(result)}, both with {options['threads']} threads on {_processor(result)}, K/V in f16. "
        f"{_streams(options)} Memory: the most that is no file's, with {options['streams']} contexts of "
        f"{options['context']:,} filled. llama.cpp is that of llama-cpp-python {llama['llama_cpp_python']}, "
        "built on that machine."
    )


def _device_note(result: Result) -> str:
    llama, device = result["sides"][LLAMA], result["sides"]["tierd"]["device"]
    return (
        f"{_medians(result)}, both on the {device['type']} device {device['name']}, Vulkan "
        f"{device['vulkan']}, with {_processor(result)}, K/V in f16. {_streams(result['options'])} "
        f"llama.cpp is that of cyllama-vulkan {llama['cyllama_vulkan']}, with all layers on the device."
    )


def _medians(result: Result) -> str:
    return (
        f"Tokens per second, in parentheses times llama.cpp's; medians of {result['options']['rounds']} "
        f"rounds on {result['date'][:10]}"
    )


def _processor(result: Result) -> str:
    machine = result["machine"]
    return f"{machine['cores']} cores of {machine['processor']} ({', '.join(machine['flags'])})"


def _streams(options: dict[str, int]) -> str:
    return f"Streams go on by {options['tokens']} tokens behind prompts of {options['prompt']}."


def _wrapped(text: str, width: int = 115) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


HOST = Table(HERE / "results", "made by tests/bench/tables.py", _host_note)
DEVICE = Table(HERE / "results" / "device", "made by tests/bench/tables.py, device", _device_note)


def main() -> int:
    page = README.read_text(encoding="utf-8")
    for table in (HOST, DEVICE):
        page = table.put(page)
    README.write_text(page, encoding="utf-8")
    print(f"{README.name} has the tables of the newest results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
