"""The program that renders one chat template, in a process of its own so that it can be bounded and killed.

See `confined`. The first message says, besides, the "template", the "globals" that it knows, and how many
"characters" a text may have; its answer is a JSON list of the variables that the template reads. Each later
one holds the variables of one rendering; its answer is the text.

The engine is set up as the `transformers` library sets it up, for which the templates were written: Jinja2's
immutable sandbox, blocks trimmed, `break` and `continue`, `{% generation %}`, `tojson`, `raise_exception`
and `strftime_now`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from jinja2 import Environment, Template, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tierd.chat.confined import Answers, serve


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


def prepare(setup: dict[str, Any]) -> tuple[Answers, str]:
    """Return what renders the template, and the variables that it reads."""
    with plainly():
        template = compile_template(setup["template"], setup["globals"])

    def answer(variables: dict[str, Any]) -> str:
        with plainly():
            return render(template, variables, setup["characters"])

    return answer, json.dumps(taken(setup["template"]))


@contextmanager
def plainly() -> Iterator[None]:
    """Let errors say where in a template they are, if they know it."""
    try:
        yield
    except RecursionError:
        raise TemplateError("it calls itself too deeply") from None
    except TemplateSyntaxError as error:
        raise TemplateError(f"line {error.lineno}: {error}") from None


if __name__ == "__main__":
    serve(prepare)
