"""`tierd ctl`: a thin client of the admin API of a running daemon."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tierd.cli.client import Client, at_socket, at_url
from tierd.cli.token import read_token
from tierd.errors import SettingsError
from tierd.http.admin import Slots, Status
from tierd.settings import AdminSettings, admin_sockets


def connect(
    settings: AdminSettings, *, socket: Path | None, url: str | None, token_file: Path | None
) -> Client:
    """Return a client of the admin API: where the flags say, else where the settings do.

    Raises SettingsError.
    """
    if socket is None and url is None and settings.socket == "off":
        if not settings.listen:
            raise SettingsError("the settings turn the admin API off; name one with --socket or --url")
        url = f"http://{settings.listen}"
    if url is not None:
        token_file = token_file or settings.token_file
        return at_url(url, token=read_token(token_file) if token_file else "")
    if socket is None and settings.socket != "auto":
        socket = Path(settings.socket)
    if socket is None:
        places = admin_sockets()
        socket = next((place for place in places if place.exists()), places[0])
    return at_socket(socket)


def print_status(status: Status) -> None:
    """Print the answer of /status."""
    console = Console(highlight=False)
    console.print(f"tierd {status.version}, up for {_duration(status.uptime_s)}", markup=False)
    table = _table(
        "model", "outcome", right=("running", "paused", "waiting", "pages", "used", "cached", "free")
    )
    for model in status.models:
        pages = model.pages
        counts = (
            model.running, model.paused, model.waiting, pages.total, pages.used, pages.cached, pages.free,
        )  # fmt: skip
        table.add_row(escape(model.id), escape(model.outcome), *(f"{count:,}" for count in counts))
    for name in status.loading:
        table.add_row(escape(name), "loading")
    console.print(table)


def print_slots(answer: Slots) -> None:
    """Print the answer of /slots; below it, which models are not on the GPU, and why."""
    table = _table(
        "model", "architecture", "outcome", "K/V", right=("context", "streams", "prompt", "output")
    )
    for slot in answer.slots:
        names = (slot.id + (" (default)" if slot.default else ""), slot.architecture, slot.outcome)
        counts = (slot.context, slot.streams, slot.max_prompt_tokens, slot.max_output_tokens)
        table.add_row(*map(escape, (*names, slot.kv_dtype)), *(f"{count:,}" for count in counts))
    console = Console(highlight=False)
    console.print(table)
    for slot in answer.slots:
        if slot.decline:
            console.print(f"{slot.id} is not on the GPU: {slot.decline}", markup=False, soft_wrap=True)


def _table(*left: str, right: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hours}:{minutes:02}:{seconds:02}"
