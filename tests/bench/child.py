"""A child process that answers calls: a line of JSON for each call, and one for each answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def serve(side: object) -> None:
    """Answer calls of a side's methods until the input ends. What anyone else prints goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        call = json.loads(line)
        answers.write(json.dumps(getattr(side, call.pop("call"))(**call)) + "\n")


class Child:
    """A process that runs `serve`, until it is left. It uses no processor while it is asked nothing."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, call: str, **arguments: Any) -> Any:
        """Call a method of the side and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise SystemExit(f"{' '.join(self._command)} ended in {call}, with code {self._process.wait()}")
        return json.loads(answer)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: Any) -> None:
        """Let it end."""
        self._process.__exit__(*error)
