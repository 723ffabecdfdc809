"""The program that renders one chat template, in a process of its own so that it can be bounded and killed.

Run with the number of a file descriptor, one end of a `multiprocessing.Pipe`. The first message in is a
JSON object {"template", "globals", "memory", "seconds", "characters"}; each later one holds the variables
of one rendering. Each is answered by one: "+" and the text as UTF-8, or "-" and what is wrong in one line.
The text that answers the first is a JSON list of the variables that the template reads.
It ends when the other end is closed, or dies of SIGPROF when a rendering takes too long.

The engine is set up as the `transformers` library sets it up, for which the templates were written: Jinja2's
immutable sandbox, blocks trimmed, `break` and `continue`, `{% generation %}`, `tojson`, `raise_exception`
and `strftime_now`.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from datetime import datetime
from multiprocessing.connection import Connection
from typing import Any

from jinja2 import Environment, Template, TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """`{% generation %}` marks what the model wrote, for training; here its body is just text."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that Extension gives it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as `transformers` writes it: not escaped for HTML, unlike Jinja2's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message: object) -> None:
    """Let a template refuse what it is given."""
    raise TemplateError(str(message))


def strftime_now(pattern: str) -> str:
    """Return the local time now."""
    return datetime.now().strftime(pattern)


def make_environment() -> Environment:
    """Return what templates are compiled in."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return environment


def compile_template(source: str, variables: dict[str, Any]) -> Template:
    """Compile a template, `variables` being known to every rendering."""
    return make_environment().from_string(source, globals=variables)


def taken(source: str) -> list[str]:
    """Return the names of the variables that a template reads and does not set."""
    environment = make_environment()
    return sorted(meta.find_undeclared_variables(environment.parse(source)) - environment.globals.keys())


def render(template: Template, variables: dict[str, Any], characters: int) -> str:
    """Render, giving up once the text is longer than `characters`."""
    pieces = []
    for piece in template.generate(variables):
        characters -= len(piece)
        if characters < 0:
            raise TemplateError("the text it makes is too long")
        pieces.append(piece)
    return "".join(pieces)


def complaint(error: Exception) -> str:
    """Return what is wrong, in one line."""
    if isinstance(error, MemoryError):
        return "it needs too much memory"
    if isinstance(error, RecursionError):
        return "it calls itself too deeply"
    line = getattr(error, "lineno", None)
    where = f"line {line}: " if line else ""
    return where + " ".join(str(error).split())


def serve(connection: Connection) -> None:
    """Answer messages until there are no more."""
    setup: dict[str, Any] = json.loads(connection.recv_bytes())
    confine(setup["memory"])
    template: Template | None = None
    variables: dict[str, Any] = {}
    while True:
        bound_time(setup["seconds"])
        try:
            if template is None:
                template = compile_template(setup["template"], setup["globals"])
                answer = "+" + json.dumps(taken(setup["template"]))
            else:
                answer = "+" + render(template, variables, setup["characters"])
        except Exception as error:
            answer = "-" + complaint(error)
        bound_time(0)
        connection.send_bytes(answer.encode("utf-8", "surrogatepass"))
        try:
            variables = json.loads(connection.recv_bytes())
        except EOFError:
            return


def bound_time(seconds: float) -> None:
    """Die, for lack of a handler, after so much more processor time; 0 lifts the bound."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def confine(memory: int) -> None:
    """Give up what rendering needs none of: memory beyond `memory` bytes, files, processes."""
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(limit, (value, value))


if __name__ == "__main__":
    # Signals for the daemon reach its whole group; this process ends with the daemon, not before.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))
