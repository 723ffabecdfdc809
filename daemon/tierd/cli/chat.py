"""`tierd chat`: a conversation with a running daemon, at a terminal or through a pipe."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from urllib.parse import quote

import msgspec
from rich.console import Console

from tierd.cli.client import Client
from tierd.cli.conversation import Conversation, Thought
from tierd.cli.lines import pipe, read_message, terminal
from tierd.cli.parameters import PARAMETERS
from tierd.errors import DaemonError, TierdError

# Control characters that a model could steer a terminal with; tabs and line feeds may pass.
_CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f]")


def chat(conversation: Conversation) -> None:
    """Talk until the input ends. Raises DaemonError: at a terminal only when the daemon is not there.

    At a terminal, an error ends an answer; in a pipe, it ends the program.
    """
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    models = served(conversation.client, conversation.model)
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    (Terminal(conversation, models) if at_terminal else Repl(conversation)).run()


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    """What is read of /v1/models."""

    data: list[_Model]


def served(client: Client, model: str | None) -> list[str]:
    """Return the models that answer; `model` alone when it is one of them. Raises DaemonError."""
    if model is not None:
        client.get(f"/v1/models/{quote(model)}")
        return [model]
    models = [entry.id for entry in client.shaped(client.get("/v1/models"), _Models).data]
    if not models:
        raise DaemonError(f"no model is ready at {client.place}; try again later")
    return models


class CommandError(TierdError):
    """A line that begins with / cannot be carried out."""


@dataclass(frozen=True, slots=True)
class Command:
    """What a line that begins with / does. run: takes the rest of the line."""

    name: str
    argument: str
    help: str
    run: Callable[[str], None]


class Repl:
    """Reads lines from a pipe, prints answers plainly; the first error ends it."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.over = False
        self.always_stats = False
        self.commands = {
            command.name: command
            for command in (
                Command("help", "", "show this", self._help),
                Command("stats", "[on|off]", "show what the last answer took; on: every one", self._stats),
                Command("reset", "", "forget the conversation, keep the system prompt", self._reset),
                Command("retry", "", "ask the last question again", self._retry),
                Command("system", "[TEXT|-]", "show the system prompt, set it, or drop it", self._system),
                Command("model", "[ID]", "list the models, or go on with another one", self._model),
                Command("set", "[NAME VALUE|-]", "show or set how answers are made", self._set),
                Command("save", "FILE", "write the conversation as the body of a request", self._save),
                Command("quit", "", "leave", self._quit),
            )
        }
        self._read = pipe()

    def run(self) -> None:
        """Serve lines until they end, or /quit. Raises DaemonError, CommandError."""
        while not self.over:
            line = read_message(self._read, "", "")
            if line is None:
                return
            self.handle(line)

    def handle(self, line: str) -> None:
        """Serve one line: a command, or a question."""
        if line.startswith("/"):
            name, _, rest = line[1:].partition(" ")
            if name not in self.commands:
                raise CommandError(f"there is no command /{name}; /help lists them")
            self.commands[name].run(rest.strip())
        elif line.strip():
            self.ask(line)

    def ask(self, text: str) -> None:
        """Ask a question and print the answer."""
        self.show(self.conversation.ask(text))

    def show(self, answer: Generator[str, None, None]) -> None:
        """Print an answer as it comes."""
        last, answered = "", True
        try:
            with closing(answer) as pieces:
                for piece in pieces:
                    if isinstance(piece, Thought):
                        self.think(piece)
                    else:
                        self.write(piece)
                        last = piece
        except DaemonError:
            answered = bool(last)
            raise
        finally:
            if answered and not last.endswith("\n"):
                self.write("\n")
        if self.always_stats:
            self._stats("")

    def write(self, text: str) -> None:
        """Print a piece of an answer."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def think(self, thought: str) -> None:
        """Take in a piece of a thought; who reads answers from a pipe wants none."""

    def note(self, text: str) -> None:
        """Print what is not the model's: to standard error, so that answers can be told from it."""
        sys.stderr.write(text + "\n")

    def _help(self, rest: str) -> None:
        width = max(len(f"{c.name} {c.argument}") for c in self.commands.values())
        for command in self.commands.values():
            self.note(f"  /{f'{command.name} {command.argument}':{width}}  {command.help}")
        self.note(
            "  A line that ends with \\ goes on in the next one; one that begins with a space is no command."
        )

    def _stats(self, rest: str) -> None:
        if rest in ("on", "off"):
            self.always_stats = rest == "on"
        elif rest:
            raise CommandError(f"/stats takes on, off or nothing, not {rest!r}")
        else:
            self.note(str(self.conversation.stats or "nothing was asked yet"))

    def _reset(self, rest: str) -> None:
        self.conversation.reset()
        self.note("the conversation is forgotten")

    def _retry(self, rest: str) -> None:
        if not self.conversation.messages:
            raise CommandError("nothing was asked yet")
        self.show(self.conversation.retry())

    def _system(self, rest: str) -> None:
        if rest:
            self.conversation.system = "" if rest == "-" else rest
        self.note(f"system prompt: {self.conversation.system or 'none'}")

    def _model(self, rest: str) -> None:
        client = self.conversation.client
        if rest:
            served(client, rest)
            self.conversation.model = rest
            self.note(f"model: {rest}")
        else:
            models = served(client, None)
            current = self.conversation.model or self.conversation.default
            if current is None and len(models) == 1:
                current = models[0]
            for model in models:
                self.note(f"{'*' if model == current else ' '} {model}")
            if current is None:
                self.note("the daemon's default one answers; its first answer will tell which that is")

    def _set(self, rest: str) -> None:
        parameters = self.conversation.parameters
        name, _, value = rest.partition(" ")
        if not rest:
            given = ", ".join(f"{key} {value}" for key, value in parameters.items())
            self.note(given or f"nothing is set; there are {', '.join(PARAMETERS)}")
        elif name not in PARAMETERS:
            raise CommandError(f"/set knows {', '.join(PARAMETERS)}, not {name!r}")
        elif value.strip() == "-":
            parameters.pop(name, None)
        else:
            try:
                parameters[name] = PARAMETERS[name].read(value)
            except ValueError as error:
                raise CommandError(f"{name} {error}; - leaves it to the model") from None

    def _save(self, rest: str) -> None:
        if not rest:
            raise CommandError("/save takes the name of a file")
        request = json.dumps(self.conversation.request(), ensure_ascii=False, indent=2) + "\n"
        path = Path(rest)
        try:
            path = path.expanduser()
            with path.open("xb") as file:
                file.write(request.encode(errors="replace"))
        except (RuntimeError, ValueError) as error:  # ~ of a user who is not there; NUL
            raise CommandError(f"/save takes the name of a file, not {rest!r}") from error
        except OSError as error:
            raise CommandError(f"cannot write {path}: {error.strerror}; choose another file") from error
        self.note(f"saved to {path}")

    def _quit(self, rest: str) -> None:
        self.over = True


class Terminal(Repl):
    """Talks with a person: a prompt, colours, line editing; Ctrl-C stops an answer, Ctrl-D leaves."""

    def __init__(self, conversation: Conversation, models: list[str]) -> None:
        super().__init__(conversation)
        self._models = models
        self._console = Console(highlight=False, soft_wrap=True)
        self._read = terminal([f"/{name}" for name in self.commands])
        self._thinking = False

    def run(self) -> None:
        """Greet, then serve lines until Ctrl-D or /quit."""
        who = f"{' or '.join(self._models)} at {self.conversation.client.place}"
        self.note(f"{who}; /help lists the commands, Ctrl-D leaves")
        prompt, more = self._prompt("> "), self._prompt(". ")
        while not self.over:
            try:
                line = read_message(self._read, prompt, more)
                if line is None:
                    self.write("\n")
                    return
                self.handle(line)
            except KeyboardInterrupt:
                self.write("\n")
            except (CommandError, DaemonError) as error:
                self._console.print(str(error), style="red", markup=False)

    def show(self, answer: Generator[str, None, None]) -> None:
        """Print an answer as it comes, up to Ctrl-C."""
        try:
            super().show(answer)
        except KeyboardInterrupt:
            self.note("stopped; Ctrl-D leaves")

    def write(self, text: str) -> None:
        """Print a piece of an answer, without what would steer the terminal."""
        if self._thinking:
            self._thinking = False
            super().write("\n\n")
        super().write(_CONTROLS.sub("�", text))

    def think(self, thought: str) -> None:
        """Print a piece of a thought."""
        self._thinking = True
        self._console.print(_CONTROLS.sub("�", thought), style="dim", markup=False, end="")

    def note(self, text: str) -> None:
        """Print what is not the model's."""
        self._console.print(text, style="dim", markup=False)

    def _prompt(self, text: str) -> str:
        """Colour a prompt, and tell readline which characters take no room."""
        if self._console.color_system is None:
            return text
        return f"\001\033[1;36m\002{text}\001\033[0m\002"
