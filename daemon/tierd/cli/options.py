"""Options that several commands have, and what they ask for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from tierd.cli.parameters import PARAMETERS

config = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    envvar="TIERD_CONFIG",
    show_envvar=True,
    help="Settings, in TOML. config/tierd.toml in the source is their manual.",
)

as_json = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


def print_json(answer: Any) -> None:
    """Print what `as_json` asks for."""
    click.echo(json.dumps(answer, indent=2))


def answers(names: Iterable[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option for each of these names of PARAMETERS."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(list(names)):
            flag = f"--{name.replace('_', '-')}"
            command = click.option(flag, metavar="N", callback=_read, help=PARAMETERS[name].help)(command)
        return command

    return add


def _read(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else PARAMETERS[str(option.name)].read(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
