"""Turns the messages of a chat into one prompt, through the model's chat template.

A template is a program out of a model file, run on a client's words, so it runs in a process of its own
(`template_worker`) with bounded time, memory and output; one that goes too far is killed and the next
rendering starts a new one.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from tierd.chat.tokenizer import Tokenizer
from tierd.errors import InvalidRequestError, ModelFileError, SettingsError, UnavailableError
from tierd.models.gguf import GGUFFile

CHAT_TEMPLATE = "tokenizer.chat_template"

MOST_SECONDS = 2.0
MOST_MEMORY = 512 << 20
MOST_CHARACTERS = 8 << 20
# Not imported: its template engine is for its own process.
_WORKER = str(Path(__file__).with_name("template_worker.py"))
# Waiting is longer than MOST_SECONDS of processor time, as the cores may be busy.
_PATIENCE_SECONDS = 10.0
_CLOSED = "the model is being unloaded; try again later, or ask for another"


class TemplateError(Exception):
    """A template failed; the message says how, in one line."""


class Renderer:
    """One model's chat template. Thread-safe; renderings take turns.

    template: its text. takes: the variables that it reads and does not set, beside the two of `variables`.
    """

    def __init__(self, template: str, variables: Mapping[str, str]) -> None:
        """Compile the template, `variables` being known to it. Raises TemplateError."""
        self.template = template
        self._setup = {
            "template": template,
            "globals": dict(variables),
            "memory": MOST_MEMORY,
            "seconds": MOST_SECONDS,
            "characters": MOST_CHARACTERS,
        }
        self._turn = threading.Lock()
        self._closed = False
        self._worker: _Worker | None = _Worker(self._setup)
        self.takes = frozenset(self._worker.takes)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt. Blocks, for milliseconds as a rule, for ten seconds at worst.

        tools: in OpenAI's shape. variables: more that the template may take.
        Raises InvalidRequestError with the template's own message if it refuses the messages, fails, or
        takes too much time, memory or room; UnavailableError once it is closed.
        """
        given = {
            "documents": None,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        with self._turn:
            try:
                if self._closed:
                    raise UnavailableError(_CLOSED)
                if self._worker is None:
                    self._worker = _Worker(self._setup)
                return self._worker.ask(given)
            except TemplateError as error:
                if self._closed:
                    raise UnavailableError(_CLOSED) from None
                if self._worker is not None and not self._worker.alive:
                    self._worker = None
                raise InvalidRequestError(f"the chat template failed: {error}", param="messages") from None

    def close(self) -> None:
        """End its process, and a rendering that is going on. Idempotent."""
        self._closed = True
        if (worker := self._worker) is not None:
            worker.kill()
        with self._turn:
            if self._worker is not None:
                self._worker.end()
                self._worker = None


def build_renderer(file: GGUFFile, tokenizer: Tokenizer, template: str | None = None) -> Renderer | None:
    """Return the renderer of `template`, or else of the file's own; None if there is neither.

    Raises SettingsError or ModelFileError if the template, given or the file's, does not compile.
    """
    given = template is not None
    if template is None:
        template = file.text(CHAT_TEMPLATE, "")
    if not template:
        return None
    variables = {
        name: tokenizer.token_text(token)
        for name, token in (("bos_token", tokenizer.bos_id), ("eos_token", tokenizer.eos_id))
        if token is not None
    }
    try:
        return Renderer(template, variables)
    except TemplateError as error:
        if given:
            raise SettingsError(f"the chat template given for {file.path} is wrong: {error}") from None
        raise ModelFileError(
            f"{file.path}: key {CHAT_TEMPLATE} does not compile: {error}; give the model another template "
            "with chat_template in the settings"
        ) from None


def encode_prompt(tokenizer: Tokenizer, rendered: str) -> list[int]:
    """Return the ids of a rendered prompt: control tokens parsed, begin token added unless it is there.

    Templates may write the begin token themselves; models are trained with one. (llama.cpp's server
    takes it off the rendered text for the same reason.)
    """
    ids = tokenizer.encode(rendered, add_special=True, parse_special=True)
    if tokenizer.adds_bos and ids[:2] == [tokenizer.bos_id, tokenizer.bos_id]:
        del ids[0]
    return ids


class _Worker:
    """A process that has compiled one template. Killed when this object goes, or the interpreter ends.

    takes: the names of variables that the template reads.
    """

    def __init__(self, setup: Mapping[str, object]) -> None:
        """Start it. Raises TemplateError if the template does not compile."""
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", _WORKER, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={name: os.environ[name] for name in ("TZ", "LD_LIBRARY_PATH") if name in os.environ},
            )
        self._end = weakref.finalize(self, _end, self._process, self._connection)
        self.takes: list[str] = json.loads(self.ask(setup))

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
        """Send a message and return the answer. Raises TemplateError; the worker may then be dead."""
        try:
            sent = json.dumps(message).encode()
        except RecursionError:
            raise TemplateError("what it is given is nested too deeply") from None
        try:
            self._connection.send_bytes(sent)
            if not self._connection.poll(_PATIENCE_SECONDS):
                raise TimeoutError
            answer = self._connection.recv_bytes().decode("utf-8", "surrogatepass")
        except (TimeoutError, EOFError, ConnectionError):
            self._end()
            status = self._process.returncode
            if status in (-signal.SIGPROF, -signal.SIGKILL):
                raise TemplateError("it takes too much time") from None
            raise TemplateError(f"its process ended with status {status}") from None
        if answer.startswith("-"):
            raise TemplateError(answer[1:])
        return answer[1:]


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    process.kill()
    process.wait()
