"""Make tables of a result of throughput.py.

Usage: python tests/bench/tables.py [RESULT.json]

Puts the table of a result, by default the newest one in tests/bench/results, into the README between its
marks. A result names for each file and side: "load", seconds; "prefill", "decode_one" and "decode_many",
tokens per second, one for each round; "memory", bytes.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
README = HERE.parent.parent / "README.md"
MARKS = ("<!-- made by tests/bench/tables.py: begin -->", "<!-- made by tests/bench/tables.py: end -->")
LLAMA = "llama.cpp"
RATES = ("prefill", "decode_one", "decode_many")


def rows(result: dict[str, Any]) -> list[list[str]]:
    """Return a heading and a row for each side of each file. Rates are tokens per second."""
    options = result["options"]
    heading = [
        "", f"prompt of {options['prefill']}", "1 stream", f"{options['streams']} streams", "opens in",
        "private memory",
    ]  # fmt: skip
    return [heading, *(row for file in result["files"] for row in _file_rows(file))]


def _file_rows(file: dict[str, Any]) -> Iterator[list[str]]:
    rival = file["sides"].get(LLAMA)
    for name, side in file["sides"].items():
        cells = []
        for measure in RATES:
            rate = statistics.median(side[measure])
            cell = f"{rate:,.0f}"
            if rival is not None and side is not rival:
                cell += f" ({rate / statistics.median(rival[measure]):.2f})"
            cells.append(cell)
        memory = side["memory"]["peak_private"] / 1e6
        yield [
            f"{file['title']}, {name}",
            *cells,
            f"{statistics.median(side['load']):.2f} s",
            f"{memory:,.0f} MB",
        ]


def plain(result: dict[str, Any]) -> str:
    """Return the table for a terminal."""
    table = rows(result)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]) for first, *rest in table
    )


def markdown(result: dict[str, Any]) -> str:
    """Return the table for the README, and what was measured where."""
    heading, *body = rows(result)
    options, machine = result["options"], result["machine"]
    lines = [
        "| " + " | ".join(row) + " |" for row in [heading, ["---", *["---:"] * (len(heading) - 1)], *body]
    ]
    llama = result["sides"][LLAMA]
    note = (
        f"Tokens per second, in parentheses times llama.cpp's; medians of {options['rounds']} rounds on "
        f"{result['date'][:10]}, both with {options['threads']} threads on {machine['cores']} cores of "
        f"{machine['processor']} ({', '.join(machine['flags'])}), K/V in f16. Streams go on by "
        f"{options['tokens']} tokens behind prompts of {options['prompt']}. Memory: the most that is no "
        f"file's, with {options['streams']} contexts of {options['context']:,} filled. llama.cpp is that of "
        f"llama-cpp-python {llama['llama_cpp_python']}, built on that machine."
    )
    return "\n".join(["", *lines, "", *_wrapped(note), ""])


def _wrapped(text: str, width: int = 115) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def between_marks(page: str, content: str) -> str:
    """Return a page with what stands between the marks replaced."""
    begin, end = map(re.escape, MARKS)
    whole = f"{MARKS[0]}\n{content}\n{MARKS[1]}"
    page, count = re.subn(f"{begin}\n.*?{end}", lambda _: whole, page, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"the page must hold {MARKS[0]} and {MARKS[1]} once")
    return page


def newest(folder: Path = HERE / "results") -> Path:
    """Return the newest result: their names begin with the date."""
    results = sorted(folder.glob("*.json"))
    if not results:
        raise SystemExit(f"{folder} holds no result; `make bench` makes one")
    return results[-1]


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else newest()
    result = json.loads(path.read_text(encoding="utf-8"))
    page = README.read_text(encoding="utf-8")
    README.write_text(between_marks(page, markdown(result)), encoding="utf-8")
    print(f"{README.name} has the table of {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
