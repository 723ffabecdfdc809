"""The command line: settings, wiring, exit codes.

Exit codes: 0 fine; 1 anything not named here; 2 settings or usage; 3 a required tier was not
reached; 4 a model could not be loaded.
Errors are one line on standard error.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from tierd import __version__
from tierd.cli import options
from tierd.cli.ctl_commands import ctl
from tierd.cli.parameters import PARAMETERS
from tierd.errors import ModelError, RequiredTierError, SettingsError, TierdError, one_line
from tierd.service.logs import priority
from tierd.settings import KV_DTYPES, LOG_LEVELS, Settings, load_settings

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_TIER = 3
EXIT_MODEL = 4

_model_files = click.option(
    "--model",
    "models",
    metavar="FILE.gguf",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A model, which gets its file's name without .gguf. May be repeated; needs no settings.",
)


def _settings(config: Path | None, models: Sequence[Path], **flags: str | None) -> Settings:
    settings = load_settings(config, models=models, **flags)
    if not settings.models:
        raise SettingsError(
            f"{config}: there is no [[models]] table; add one, or give --model FILE.gguf"
            if config
            else "no model was named; give --model FILE.gguf, or --config FILE with a [[models]] table"
        )
    return settings


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(prog)s %(version)s")
def tierd() -> None:
    """Serve GGUF language models from one box over the OpenAI HTTP API.

    \b
    Begin with a model file, and talk to it from a second terminal:
      tierd serve --model SmolLM2-135M-Instruct.Q4_1.gguf
      tierd chat

    \b
    Exit codes:
      0  fine
      1  anything not named here
      2  settings or usage, an address in use among them
      3  a model cannot be on the GPU, where `require` says that it must
      4  a model could not be loaded
    """


@tierd.command("serve")
@options.config
@_model_files
@click.option("--listen", metavar="HOST:PORT", help="Where to serve, instead of server.listen.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), help="What to log, instead of log.level.")
def _serve(config: Path | None, models: Sequence[Path], listen: str | None, log_level: str | None) -> None:
    """Serve models until Ctrl-C or SIGTERM.

    The OpenAI API is at http://HOST:PORT/v1, beside /health and /metrics. One line on standard output says
    when all models are ready; the log goes to standard error. Until then, requests are answered with 503.
    When one of the models cannot be loaded, tierd serves none: it names the model and exits with code 4, or
    with code 3 when it is required to be on the GPU and cannot.

    \b
    Examples:
      tierd serve --model model.gguf
      tierd serve --model a.gguf --model b.gguf --listen 0.0.0.0:8080
      tierd serve --config /etc/tierd.toml --log-level warning

    A first SIGTERM lets streams finish, a second one ends at once. At SIGHUP the settings are read again:
    those change that may while tierd serves, and the log names the rest. With its terminal it ends.
    """
    read = partial(_settings, config, models, listen=listen, log_level=log_level)
    settings = read()
    from tierd.cli.serve import run

    run(settings, read)


@tierd.command("models")
@options.config
@_model_files
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def _models(config: Path | None, models: Sequence[Path], as_json: bool) -> None:
    """Say what model files hold, whether tierd can serve them, and where they would run now.

    \b
    Examples:
      tierd models --model model.gguf
      tierd models --config /etc/tierd.toml --json
    """
    settings = _settings(config, models)
    from tierd.cli.models import describe, print_json, print_table

    reports = describe(settings)
    (print_json if as_json else print_table)(reports)


@tierd.command("size")
@click.argument("model", metavar="MODEL")
@click.option(
    "--context", type=int, metavar="N", help="Positions of a stream; 0: as many as there is room for."
)
@click.option("--streams", type=int, metavar="N", help="Requests that are served at the same time.")
@click.option("--kv", "kv_dtype", metavar="CODEC", help=f"How K/V is kept: {', '.join(KV_DTYPES)}.")
@click.option("--regions", type=int, metavar="N", help="Streams whose K/V a GPU keeps; 0: all of them.")
@click.option(
    "--vram",
    type=click.IntRange(0),
    metavar="MIB",
    help="Most of a GPU's memory, be there one or not; 0: all.",
)
@options.config
@options.as_json
def _size(
    model: str, config: Path | None, as_json: bool, vram: int | None, **table: int | str | None
) -> None:
    """Say what a model would take of this box, and how much it could serve there.

    MODEL is a GGUF file, here or in the models directory ($XDG_DATA_HOME/tierd/models), or the id of a model
    in the settings. Only the file's header is read. What is not given is as in the settings, or their
    defaults. The model is alone: `tierd models` says where several would run now.

    The exit code is 0 also where the model does not fit, which is said with what keeps it from that; 4 where
    there is no sound model, 2 where a value cannot be.

    \b
    Examples:
      tierd size model.gguf
      tierd size model.gguf --context 4096 --streams 32 --kv q8_0
      tierd size model.gguf --vram 4096
      tierd size smol --config /etc/tierd.toml --regions 4 --json
    """
    settings = load_settings(config)
    from tierd.cli.size import describe
    from tierd.cli.size_views import document, print_report

    given = {key: value for key, value in table.items() if value is not None}
    report = describe(settings, model, given, vram)
    if as_json:
        options.print_json(document(report))
    else:
        print_report(report)


@tierd.command("doctor")
@options.config
@_model_files
@options.as_json
def _doctor(config: Path | None, models: Sequence[Path], as_json: bool) -> None:
    """Say what this box can do, what it cannot, and what to type about that.

    Run it as the user who runs tierd: rights are looked at as theirs. Without settings, tierd's defaults are
    what is asked for. The exit code is 0 when tierd can serve as the settings ask, else what `tierd serve`
    would exit with.

    \b
    Examples:
      tierd doctor
      tierd doctor --config /etc/tierd.toml --json
    """
    settings = load_settings(config, models=models)
    from tierd.cli.doctor import check, document, examine, print_findings

    findings = examine(settings)
    if as_json:
        options.print_json(document(findings))
    else:
        print_findings(findings)
    check(findings)


@tierd.command("chat")
@click.option(
    "--url",
    metavar="URL",
    default="http://127.0.0.1:8080",
    show_default=True,
    envvar="TIERD_URL",
    show_envvar=True,
    help="Where the daemon is.",
)
@click.option("--model", metavar="ID", help="Which of its models to talk to; its default one if not given.")
@click.option("--system", metavar="TEXT", default="", help="The system prompt.")
@click.option(
    "--key",
    metavar="KEY",
    default="",
    envvar="TIERD_API_KEY",
    show_envvar=True,
    help="The API key, where the daemon asks for one.",
)
@options.answers(PARAMETERS)
def _chat(url: str, model: str | None, system: str, key: str, **parameters: float | None) -> None:
    """Talk to a model of a running daemon.

    Answers come as they are made; Ctrl-C stops one, Ctrl-D leaves, and /help lists what else there is. The
    lines that you type are kept in $XDG_STATE_HOME/tierd/chat_history (~/.local/state where that is not set).

    Without a terminal, every line of standard input is a question and standard output gets the answers alone;
    the first error ends it with exit code 1.

    \b
    Examples:
      tierd chat --model smol --temperature 0
      tierd chat --url http://box:8080 --system 'Answer in one sentence.'
      echo 'Name the capital of France.' | tierd chat
    """
    from tierd.cli.chat import chat
    from tierd.cli.client import at_url
    from tierd.cli.conversation import Conversation

    given = {name: value for name, value in parameters.items() if value is not None}
    chat(Conversation(at_url(url, token=key), model, system, given))


@tierd.command("key")
@click.argument("name", metavar="NAME")
def _key(name: str) -> None:
    """Make an API key, for the file that server.api_keys_file names.

    Standard output gets the line for the file, which holds a hash of the key; the key itself is shown on
    standard error, this once. NAME is what the log and the settings call its owner.

    \b
    Example:
      (umask 077; tierd key alice >> /etc/tierd.keys)
    """
    from tierd.http.keys import line_of, make_key

    key = make_key()
    line = line_of(name, key)
    click.echo(f"The key of {name}, which is shown this once: {key}", err=True)
    click.echo(line)


tierd.add_command(ctl)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. arguments: without the program's name."""
    try:
        tierd.main(args=arguments, prog_name="tierd", standalone_mode=False)
    except click.ClickException as error:
        return _fail(error.format_message(), EXIT_USAGE)
    except SettingsError as error:
        return _fail(str(error), EXIT_USAGE)
    except RequiredTierError as error:
        return _fail(str(error), EXIT_TIER)
    except ModelError as error:
        return _fail(str(error), EXIT_MODEL)
    except (TierdError, OSError) as error:
        return _fail(str(error), EXIT_FAILURE)
    except click.Abort:
        return EXIT_FAILURE
    return 0


def _fail(message: str, code: int) -> int:
    click.echo(f"{priority(sys.stderr, logging.ERROR)}tierd: {one_line(message)}", err=True)
    return code
