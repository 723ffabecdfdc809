"""Put the tables of the newest results into the README, each between its marks.

Usage: python tests/bench/tables.py

Made here are those of contests, throughput.py and device_throughput.py. Their results name for each file and
side: "load", seconds; "prefill", "decode_one" and "decode_many", tokens per second, one for each round;
"memory", bytes, where it was watched.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contest import LLAMA
from serving_tables import SERVING
from switching_tables import CALLS, PHASES, RETURNS
from table import Result, Table, processor

HERE = Path(__file__).resolve().parent
README = HERE.parent.parent / "README.md"
RATES = ("prefill", "decode_one", "decode_many")


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


def _host_note(result: Result) -> str:
    options, llama = result["options"], result["sides"][LLAMA]
    return (
        f"{_medians(result)}, both with {options['threads']} threads on {processor(result)}, K/V in f16. "
        f"{_streams(options)} Memory: the most that is no file's, with {options['streams']} contexts of "
        f"{options['context']:,} filled. llama.cpp is that of llama-cpp-python {llama['llama_cpp_python']}, "
        "built on that machine."
    )


def _device_note(result: Result) -> str:
    llama, device = result["sides"][LLAMA], result["sides"]["tierd"]["device"]
    return (
        f"{_medians(result)}, both on the {device['type']} device {device['name']}, Vulkan "
        f"{device['vulkan']}, with {processor(result)}, K/V in f16. {_streams(result['options'])} "
        f"llama.cpp is that of cyllama-vulkan {llama['cyllama_vulkan']}, with all layers on the device."
    )


def _medians(result: Result) -> str:
    return (
        f"Tokens per second, in parentheses times llama.cpp's; medians of {result['options']['rounds']} "
        f"rounds on {result['date'][:10]}"
    )


def _streams(options: dict[str, int]) -> str:
    return f"Streams go on by {options['tokens']} tokens behind prompts of {options['prompt']}."


HOST = Table(HERE / "results", "made by tests/bench/tables.py", rows, _host_note)
DEVICE = Table(HERE / "results" / "device", "made by tests/bench/tables.py, device", rows, _device_note)
TABLES = (HOST, DEVICE, RETURNS, PHASES, CALLS, SERVING)


def main() -> int:
    page = README.read_text(encoding="utf-8")
    for table in TABLES:
        page = table.put(page)
    README.write_text(page, encoding="utf-8")
    print(f"{README.name} has the tables of the newest results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
