"""Commands of `tierd ctl` that change something. What they need is imported when they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tierd.cli import options
from tierd.cli.parameters import PARAMETERS
from tierd.settings import GPU_TIERS, KV_DTYPES, POOLINGS

if TYPE_CHECKING:
    from tierd.cli.client import Client

# Those of `tierd chat` that a [[models]] table may set too.
SAMPLING = [name for name in PARAMETERS if name not in ("max_tokens", "seed")]


def _long(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command whose work may take long."""
    no_wait = click.option("--no-wait", is_flag=True, help="Print the operation's id and return at once.")
    as_json = click.option("--json", "as_json", is_flag=True, help="Print the operation as JSON.")
    return no_wait(as_json(command))


def _carry_out(client: Client, path: str, body: dict[str, Any], no_wait: bool, as_json: bool) -> None:
    from tierd.cli.ctl_operations import carry_out

    carry_out(client, path, body, wait=not no_wait, as_json=as_json)


@click.command("switch")
@click.argument("model")
@_long
@click.pass_obj
def _switch(client: Client, model: str, no_wait: bool, as_json: bool) -> None:
    """Bring a model to the GPU now; others leave if there is no room.

    No stream ends by that: those of a model that leaves pause between two tokens and go on when it is back,
    or on the CPU where switch.resume says so.

    \b
    Phases:
      pause    steps that are under way end
      hydrate  K/V goes from the GPU to the host bank
      drop     what the model had on the GPU is freed
      save     what it takes to come back is kept
      restore  the same of the model that comes is taken up
      rearm    its weights go to the GPU
      rehome   K/V of its streams comes from the bank
    """
    _carry_out(client, "/models/activate", {"model": model}, no_wait, as_json)


@click.command("load")
@click.argument("model", metavar="FILE.gguf|ID")
@click.option("--id", metavar="ID", help="What to call it; its file's name without .gguf if not given.")
@click.option("--context", metavar="N", type=int, help="Most positions of one stream.")
@click.option("--ctx-strict/--no-ctx-strict", default=None, help="Whether a GPU must hold all of them.")
@click.option("--streams", metavar="N", type=int, help="Most requests served at the same time.")
@click.option("--regions", metavar="N", type=int, help="Streams whose K/V the GPU keeps.")
@click.option(
    "--resident-prefill-allowed/--no-resident-prefill-allowed",
    default=None,
    help="Whether prompts of streams on the CPU are computed on the GPU.",
)
@click.option("--pin/--no-pin", default=None, help="Whether it never leaves the GPU for another.")
@click.option("--preload/--no-preload", default=None, help="Whether it comes to free room on the GPU.")
@click.option("--weight", metavar="N", type=int, help="Its share of the time, relative to other models.")
@click.option("--kv-dtype", type=click.Choice(KV_DTYPES), help="How keys and values are kept.")
@click.option("--require", type=click.Choice(GPU_TIERS), help="What it must reach, or not be loaded.")
@click.option("--pooling", type=click.Choice(POOLINGS), help="How embeddings come of hidden states.")
@click.option(
    "--matryoshka/--no-matryoshka", default=None, help="Whether its embeddings may be cut to `dimensions`."
)
@click.option("--chat-template", metavar="FILE", help="A Jinja template, instead of its file's.")
@options.answers(SAMPLING)
@click.option("--penalty-window", metavar="N", type=int, help="How many last tokens penalties look at.")
@click.option(
    "--activate/--no-activate",
    default=True,
    show_default=True,
    help="Whether others leave the GPU for it now, if there is no room.",
)
@_long
@click.pass_obj
def _load(client: Client, /, model: str, no_wait: bool, as_json: bool, **wanted: Any) -> None:
    """Load a model: from a file, or by its id one of the settings or one that was loaded before.

    What ends in .gguf or begins with /, ./ or ../ is a file: one that is here, if the daemon is asked through
    its socket; any other the daemon looks for, in its models directory if the path is relative. Options are
    keys of a [[models]] table. All is checked before other models leave the GPU; if it fails, they come back.

    \b
    Exit codes:
      2  an option has a wrong value
      3  it cannot be on the GPU, where --require or the settings say that it must
      4  it cannot be loaded for another reason

    \b
    Examples:
      tierd ctl load ./SmolLM2-135M-Instruct.Q4_1.gguf --id smol --streams 4
      tierd ctl load smol --no-activate
    """
    from tierd.cli.ctl import load_body

    _carry_out(client, "/models/load", load_body(client, model, wanted), no_wait, as_json)


@click.command("unload")
@click.argument("model")
@click.option("--limit", metavar="SECONDS", type=float, help="End what still runs after so long.")
@_long
@click.pass_obj
def _unload(client: Client, model: str, limit: float | None, no_wait: bool, as_json: bool) -> None:
    """Let a model's streams end, then free all that it has; new requests for it are refused at once."""
    body = {"model": model} if limit is None else {"model": model, "limit_s": limit}
    _carry_out(client, "/models/unload", body, no_wait, as_json)


@click.command("drain")
@_long
@click.pass_obj
def _drain(client: Client, no_wait: bool, as_json: bool) -> None:
    """Refuse new requests from now on, until `tierd ctl resume`; wait for those that run."""
    _carry_out(client, "/drain", {}, no_wait, as_json)


@click.command("resume")
@_long
@click.pass_obj
def _resume(client: Client, no_wait: bool, as_json: bool) -> None:
    """Admit requests again after `tierd ctl drain`."""
    _carry_out(client, "/resume", {}, no_wait, as_json)


@click.command("operations")
@click.argument("operation", metavar="[ID]", required=False)
@_long
@click.pass_obj
def _operations(client: Client, operation: str | None, no_wait: bool, as_json: bool) -> None:
    """Show what the daemon does or did lately that takes long; with an id, follow that to its end."""
    from tierd.cli.ctl_operations import pick_up, show_all

    if operation is None:
        show_all(client, as_json=as_json)
    else:
        pick_up(client, operation, wait=not no_wait, as_json=as_json)


@click.command("flush")
@click.option("--model", metavar="ID", help="Only this model's; without it, every model's.")
@options.as_json
@click.pass_obj
def _flush(client: Client, model: str | None, as_json: bool) -> None:
    """Forget the prompts that the prefix cache keeps."""
    from tierd.http.admin.commands import Flushed

    answer = client.post("/flush", {"model": model})
    if as_json:
        options.print_json(answer)
    else:
        click.echo(f"{client.shaped(answer, Flushed).pages_freed} pages were freed")


ACTIONS = (_switch, _load, _unload, _drain, _resume, _operations, _flush)
