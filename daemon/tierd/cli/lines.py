"""Lines that a person types, or a pipe brings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

HISTORY_LENGTH = 1000

Read = Callable[[str], str]


def history_file() -> Path:
    """Return where the lines that were typed are kept."""
    state_home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state_home) / "tierd" / "chat_history"


def terminal(completions: Sequence[str]) -> Read:
    """Return a function that shows a prompt and reads a line, with editing, completion and history.

    completions: words that may begin a line. Without readline, and where the history cannot be kept, it
    goes without.
    """
    try:
        import readline
    except ImportError:
        return input
    history = history_file()
    with suppress(OSError):
        history.parent.mkdir(0o700, parents=True, exist_ok=True)
        history.touch(0o600)
        readline.read_history_file(history)
    readline.set_history_length(HISTORY_LENGTH)

    def complete(text: str, state: int) -> str | None:
        found = [word for word in completions if word.startswith(text)] if readline.get_begidx() == 0 else []
        return found[state] if text and state < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")

    def read(prompt: str) -> str:
        line = input(prompt)
        if line.strip():
            with suppress(OSError):
                readline.append_history_file(1, history)
        return line

    return read


def pipe() -> Read:
    """Return a function that reads a line of standard input and shows nothing."""

    def read(prompt: str) -> str:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")

    return read


def read_message(read: Read, prompt: str, more: str) -> str | None:
    """Read a line, and as long as a line ends with a backslash, the next one too; None at the end.

    more: the prompt of the lines that follow the first.
    """
    lines: list[str] = []
    try:
        while True:
            line = read(more if lines else prompt)
            lines.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                break
    except EOFError:
        if not lines:
            return None
    # What was not valid UTF-8 comes as lone surrogates, which no JSON may hold.
    return "\n".join(lines).encode(errors="replace").decode()
