"""A program beside the daemon, in a process of its own, so that it can be bounded and killed. Both its ends.

Messages are JSON objects. The first one sets the program up; each is answered by a text, or by what is wrong
in one line.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

# Waiting is longer than what a program may take of processor time, as the cores may be busy.
PATIENCE_SECONDS = 10.0
# Of a thread where no limit is set: the least that glibc takes.
_STACK = 2 << 20


class ConfinedError(Exception):
    """The program refuses a message, fails at it, or went too far; says how, in one line."""


class Confined:
    """A program that runs, asked by one thread at a time.

    Killed when this object goes, or the interpreter ends.

    told: what it answered to its setup.
    """

    def __init__(self, module: str, setup: Mapping[str, object]) -> None:
        """Start a module that calls `serve`. setup: its first message, with "memory" and "seconds".

        Raises ConfinedError.
        """
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={name: os.environ[name] for name in ("TZ", "LD_LIBRARY_PATH") if name in os.environ},
            )
        self._end = weakref.finalize(self, _end, self._process, self._connection)
        self.told = self.ask(setup)

    @property
    def alive(self) -> bool:
        """Whether it can be asked again."""
        return self._end.alive

    def kill(self) -> None:
        """Kill it, whoever may be asking it."""
        self._process.kill()

    def end(self) -> None:
        """Let go of it, which nobody asks."""
        self._end()

    def ask(self, message: Mapping[str, object]) -> str:
        """Send a message and return the answer. Raises ConfinedError; the program may then be dead."""
        try:
            sent = json.dumps(message).encode()
        except RecursionError:
            raise ConfinedError("what it is given is nested too deeply") from None
        try:
            self._connection.send_bytes(sent)
            if not self._connection.poll(PATIENCE_SECONDS):
                raise TimeoutError
            answer = self._connection.recv_bytes().decode("utf-8", "surrogatepass")
        except (TimeoutError, EOFError, ConnectionError):
            self._end()
            status = self._process.returncode
            if status in (-signal.SIGPROF, -signal.SIGKILL):
                raise ConfinedError("it takes too much time") from None
            if status == -signal.SIGABRT:
                raise ConfinedError("it needs too much memory") from None
            if status == -signal.SIGSEGV:
                raise ConfinedError("it is nested too deeply") from None
            raise ConfinedError(f"its process ended with status {status}") from None
        if answer.startswith("-"):
            raise ConfinedError(answer[1:])
        return answer[1:]


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    process.kill()
    process.wait()


Answers = Callable[[dict[str, Any]], str]


def serve(prepare: Callable[[dict[str, Any]], tuple[Answers, str]]) -> None:
    """Be the program: answer messages until the daemon has gone. Its argument is a file descriptor.

    prepare: makes of the first message what answers the others, and the answer to it; all bounded by its
    "memory", in bytes, and "seconds" of processor time for each message.
    """
    # Signals for the daemon reach its whole group; this process ends with the daemon, not before.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    setup: dict[str, Any] = json.loads(connection.recv_bytes())
    _confine(setup["memory"])
    answers: Answers | None = None
    message: dict[str, Any] = {}
    while True:
        _bound_time(setup["seconds"])
        try:
            if answers is None:
                answers, text = prepare(setup)
            else:
                text = answers(message)
            answer = "+" + text
        except BaseException as error:  # what a library in Rust panics with is no Exception
            answer = "-" + _complaint(error)
        _bound_time(0)
        connection.send_bytes(answer.encode("utf-8", "surrogatepass"))
        try:
            message = json.loads(connection.recv_bytes())
        except EOFError:
            return


def _complaint(error: BaseException) -> str:
    """Return what is wrong, in one line."""
    if isinstance(error, MemoryError):
        return "it needs too much memory"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return " ".join(str(error).split())


def _bound_time(seconds: float) -> None:
    """Die, for lack of a handler, after so much more processor time; 0 lifts the bound."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _confine(memory: int) -> None:
    """Give up what a program needs none of: memory beyond `memory` bytes, files, processes.

    Half of a thread's stack too: what passes here must not overflow the daemon's.
    """
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_STACK, (_STACK if stack == resource.RLIM_INFINITY else stack) // 2),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(limit, (value, value))
