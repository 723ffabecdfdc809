"""`tierd ctl` and its commands that look and change nothing.

What a command needs is imported when it runs, so that all others start quickly.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tierd.cli import options
from tierd.cli.ctl_actions import ACTIONS
from tierd.settings import load_settings

if TYPE_CHECKING:
    from tierd.cli.client import Client


@click.group("ctl")
@options.config
@click.option("--socket", metavar="PATH", type=click.Path(path_type=Path), help="The admin socket.")
@click.option("--url", metavar="URL", help="The admin API over TCP, instead of the socket.")
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The token that --url asks for, instead of admin.token_file.",
)
@click.pass_context
def ctl(
    context: click.Context, config: Path | None, socket: Path | None, url: str | None, token_file: Path | None
) -> None:
    """Steer a running daemon through its admin API.

    Without options it looks for the socket where the settings say, or where `tierd serve` puts it by itself:
    in $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/tierd or /run/tierd.

    What takes long (switch, load, unload, drain) is followed to its end; Ctrl-C ends the following, not the
    work, and `tierd ctl operations ID` follows it again.

    \b
    Examples:
      tierd ctl status
      tierd ctl switch smol
      tierd ctl load ./new.gguf --context 4096 --no-activate
      tierd ctl passes --json
      tierd ctl --url http://box:8081 --token-file token status
    """
    from tierd.cli.ctl import connect

    context.obj = connect(load_settings(config).admin, socket=socket, url=url, token_file=token_file)


def _show(client: Client, view: str, as_json: bool) -> None:
    from tierd.cli.ctl_views import VIEWS

    answer = client.get(f"/{view}")
    if as_json:
        options.print_json(answer)
    else:
        shape, print_view = VIEWS[view]
        print_view(client.shaped(answer, shape))


@ctl.command("status")
@options.as_json
@click.pass_obj
def _status(client: Client, as_json: bool) -> None:
    """Show the models, their streams and their K/V pages, and what the host bank holds."""
    _show(client, "status", as_json)


@ctl.command("slots")
@options.as_json
@click.pass_obj
def _slots(client: Client, as_json: bool) -> None:
    """Show what each model is and what it was given."""
    _show(client, "slots", as_json)


@ctl.command("tier")
@options.as_json
@click.pass_obj
def _tier(client: Client, as_json: bool) -> None:
    """Show how the GPU stands: its memory, whose that is, and how often it has failed."""
    _show(client, "tier", as_json)


@ctl.command("regions")
@options.as_json
@click.pass_obj
def _regions(client: Client, as_json: bool) -> None:
    """Show the regions of K/V on the GPU, and what is in them.

    \b
    States:
      free     nobody's
      live     of a running stream, which is named
      parked   kept for a conversation that may go on; its claim is named
      pinned   parked, and no other conversation may have it
      leaving  what it holds is on its way out
      scratch  for prompts of streams whose K/V is on the host
    """
    _show(client, "regions", as_json)


@ctl.command("sessions")
@options.as_json
@click.pass_obj
def _sessions(client: Client, as_json: bool) -> None:
    """Show the running streams, where their K/V is, and why one is not on the GPU."""
    _show(client, "sessions", as_json)


@ctl.command("passes")
@options.as_json
@click.pass_obj
def _passes(client: Client, as_json: bool) -> None:
    """Show what was meant for the GPU and ran on the CPU, and why, since each model was put where it is."""
    _show(client, "passes", as_json)


for action in ACTIONS:
    ctl.add_command(action)
