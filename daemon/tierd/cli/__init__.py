"""The command line: settings, wiring, exit codes.

Exit codes: 0 fine; 1 anything not named here; 2 settings or usage; 4 a model could not be loaded.
Errors are one line on standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from tierd import __version__
from tierd.errors import ModelError, SettingsError, TierdError
from tierd.settings import Settings, load_settings

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_MODEL = 4


def _choosing_models(command: Callable[..., Any]) -> Callable[..., Any]:
    config = click.option(
        "--config",
        type=click.Path(path_type=Path),
        envvar="TIERD_CONFIG",
        show_envvar=True,
        help="Settings file; config/tierd.toml is its manual.",
    )
    model = click.option(
        "--model",
        "models",
        type=click.Path(path_type=Path),
        multiple=True,
        help="A GGUF file, under its name without .gguf. May be repeated; needs no settings file.",
    )
    return config(model(command))


def _settings(config: Path | None, models: Sequence[Path], listen: str | None = None) -> Settings:
    settings = load_settings(config, models=models, listen=listen)
    if not settings.models:
        raise SettingsError(
            f"{config}: there is no [[models]] table; add one, or give --model FILE.gguf"
            if config
            else "no model was named; give --model FILE.gguf, or --config FILE with a [[models]] table"
        )
    return settings


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def tierd() -> None:
    """Serve GGUF language models over the OpenAI HTTP API."""


@tierd.command()
@_choosing_models
@click.option("--listen", metavar="ADDRESS", help="HOST:PORT to serve at, instead of server.listen.")
def serve(config: Path | None, models: Sequence[Path], listen: str | None) -> None:
    """Serve the models until interrupted."""
    settings = _settings(config, models, listen)
    from tierd.cli.serve import run

    run(settings)


@tierd.command()
@_choosing_models
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def models(config: Path | None, models: Sequence[Path], as_json: bool) -> None:
    """List the models, what their files hold, and whether tierd can serve them."""
    settings = _settings(config, models)
    from tierd.cli.models import describe, print_json, print_table

    reports = [describe(model) for model in settings.models]
    (print_json if as_json else print_table)(reports)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. arguments: without the program's name."""
    try:
        tierd.main(args=arguments, prog_name="tierd", standalone_mode=False)
    except click.ClickException as error:
        return _fail(error.format_message(), EXIT_USAGE)
    except SettingsError as error:
        return _fail(str(error), EXIT_USAGE)
    except ModelError as error:
        return _fail(str(error), EXIT_MODEL)
    except (TierdError, OSError) as error:
        return _fail(str(error), EXIT_FAILURE)
    except click.Abort:
        return EXIT_FAILURE
    return 0


def _fail(message: str, code: int) -> int:
    click.echo(f"tierd: {message}", err=True)
    return code
