"""The log on standard error: lines of text or of JSON, with priorities where systemd's journal reads them.

What a message says by `NAME=%s` in its template is a field of that name in JSON; a hyphen is null there.
A record has a line of its own, and nothing in it can look like another's, or steer a terminal.
Nothing that clients send or are answered is logged, but where `log.prompts` asks for it: that alone goes to
the logger PROMPTS. The messages of errors that are not tierd's own may repeat it, so of these a traceback has
the classes only.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TextIO

from tierd.errors import TierdError

# Prompts and answers, at level info: whether they are logged is whether it is enabled.
PROMPTS = logging.getLogger("tierd.prompts")
_NEVER = logging.CRITICAL + 1
PROMPTS.setLevel(_NEVER)

# Of syslog, as sd-daemon(3) has them.
_PRIORITIES = {
    logging.CRITICAL: 2,
    logging.ERROR: 3,
    logging.WARNING: 4,
    logging.INFO: 6,
    logging.DEBUG: 7,
}
_CONVERSION = re.compile(r"%%|(?:(\w+)=)?%[#0 +-]*\d*(?:\.\d+)?[a-zA-Z]")


def line(**values: object) -> tuple[Any, ...]:
    """Return template and arguments of a message that has these fields and nothing else; None: it has not."""
    given = {name: value for name, value in values.items() if value is not None}
    words = (f"{name}=%r" if _needs_quotes(value) else f"{name}=%s" for name, value in given.items())
    return (" ".join(words), *given.values())


def _needs_quotes(value: object) -> bool:
    return isinstance(value, str) and not (
        re.fullmatch(r"[^\s\"'=]+", value) is not None and value.isprintable()
    )


def told(error: BaseException) -> str:
    """Return what the log may tell of an error: its message, or its class where that may repeat others."""
    ours = isinstance(error, TierdError) and not error.quotes
    return str(error) if ours else type(error).__name__


def is_journal(stream: TextIO) -> bool:
    """Whether systemd's journal is what reads a stream, as JOURNAL_STREAM says."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # closed, or none of the system's
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def priority(stream: TextIO, level: int) -> str:
    """Return what a line of a level begins with on a stream: "" unless the journal reads it."""
    return f"<{_PRIORITIES[level]}>" if is_journal(stream) else ""


class Logs:
    """What writes all loggers' records to a stream, until it is closed."""

    def __init__(self, stream: TextIO) -> None:
        self._handler = logging.StreamHandler(stream)
        self._journal = is_journal(stream)
        self._level_before = logging.root.level
        logging.root.addHandler(self._handler)

    def set(self, *, level: str, format: str, prompts: bool) -> None:
        """Choose what is written and how; may be called again. format: "text" or "json"."""
        formatter = JSONFormatter if format == "json" else TextFormatter
        self._handler.setFormatter(formatter(journal=self._journal, prompts=prompts))
        logging.root.setLevel(level.upper())
        PROMPTS.setLevel(logging.INFO if prompts else _NEVER)

    def close(self) -> None:
        """Write no more."""
        logging.root.removeHandler(self._handler)
        logging.root.setLevel(self._level_before)
        PROMPTS.setLevel(_NEVER)


class _Formatter(logging.Formatter, ABC):
    def __init__(self, *, journal: bool, prompts: bool) -> None:
        """`journal`: it reads the lines. prompts: errors may say all that they know."""
        super().__init__()
        self._journal = journal
        self._prompts = prompts

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        prefix = f"<{_PRIORITIES.get(record.levelno, 6)}>" if self._journal else ""
        return "\n".join(prefix + each for each in self.lines(record))

    @abstractmethod
    def lines(self, record: logging.LogRecord) -> list[str]:
        """Return them without their priorities."""

    def message(self, record: logging.LogRecord) -> str:
        """Return what a record says."""
        said = record.getMessage()
        # Its other lines repeat an exception.
        return said.partition("\n")[0] if record.name == "asyncio" and not self._prompts else said

    def trace(self, record: logging.LogRecord) -> str:
        """Return the traceback of a record's exception, "" where it has none."""
        if not record.exc_info or record.exc_info[1] is None:
            return ""
        return "".join(self._chain(record.exc_info[1])).rstrip("\n")

    def _chain(self, error: BaseException) -> Iterator[str]:
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is not None:
            yield from self._chain(before)
            yield "\nwhich led to this:\n\n"
        if error.__traceback__ is not None:
            yield "Traceback (most recent call last):\n"
            yield from traceback.format_tb(error.__traceback__)
        kind = type(error).__name__
        said = str(error) if self._prompts or isinstance(error, OSError) else told(error)
        yield f"{kind}: {said}\n" if said not in ("", kind) else f"{kind}\n"


class TextFormatter(_Formatter):
    """Time, level and message; the time is the journal's own where it reads them."""

    def lines(self, record: logging.LogRecord) -> list[str]:
        """See above."""
        time = "" if self._journal else f"{self.formatTime(record)} "
        trace = self.trace(record)
        said = self.message(record).replace("\n", "\n  ")
        return [*map(_printable, f"{time}{record.levelname} {said}\n{trace}".rstrip("\n").split("\n"))]


class JSONFormatter(_Formatter):
    """An object in a line: time, level, logger, message, its fields, and the traceback as `exception`."""

    def lines(self, record: logging.LogRecord) -> list[str]:
        """See above."""
        seconds, milliseconds = divmod(round(record.created * 1000), 1000)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        about = {
            "time": f"{stamp}.{milliseconds:03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message(record),
        }
        trace = self.trace(record)
        told = _fields(record) | about | ({"exception": trace} if trace else {})
        line = json.dumps(told, ensure_ascii=False)
        return [line if line.isprintable() else json.dumps(told).replace("\x7f", "\\u007f")]


def _printable(line: str) -> str:
    """Return a line with escapes for what is no letter, sign or space."""
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what a message's template names."""
    if not isinstance(record.args, tuple):
        return {}
    conversions = [match for match in _CONVERSION.finditer(str(record.msg)) if match[0] != "%%"]
    return {
        match[1]: None if value == "-" else value if isinstance(value, bool | int | float) else str(value)
        for match, value in zip(conversions, record.args, strict=False)
        if match[1]
    }
