"""`tierd ctl`: work that takes long, asked for and followed to its end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any
from urllib.parse import quote

import click

from tierd.cli.client import Client, RefusalError
from tierd.cli.ctl_progress import print_phases, progress
from tierd.cli.ctl_views import print_operations
from tierd.cli.options import print_json
from tierd.engine.operation import DONE, FAILED, RUNNING
from tierd.errors import DaemonError, ModelError, RequiredTierError, SettingsError, TierdError
from tierd.http.admin.app import Status
from tierd.http.admin.operations import OperationList, OperationStatus

_ENDS = {
    "activate": "{model} is on the GPU",
    "unload": "{model} is unloaded",
    "drain": "no request runs any more, and none is admitted until `tierd ctl resume`",
    "resume": "requests are admitted again",
}

# By what the admin API calls the reason of a failure: errors that have exit codes of their own.
_ERRORS: Mapping[str, type[TierdError]] = {
    "invalid_setting": SettingsError,
    "tier_not_reached": RequiredTierError,
    "model_not_loadable": ModelError,
    "model_file_damaged": ModelError,
    "model_not_supported": ModelError,
}


def carry_out(client: Client, path: str, body: Mapping[str, Any], *, wait: bool, as_json: bool) -> None:
    """Ask for work and follow it to its end, or print only what it is called. Raises TierdError.

    as_json: print its last view, or without `wait` the first, as JSON and nothing else.
    """
    try:
        answer, place = client.begin(path, body)
    except RefusalError as error:
        raise _error(str(error), error.code) from error
    if wait:
        _conclude(client, _follow(client, place, answer, as_json) if place else answer, as_json)
        return
    view = client.shaped(answer, OperationStatus)
    if as_json:
        print_json(answer)
    else:
        click.echo(view.id)


def pick_up(client: Client, operation: str, *, wait: bool, as_json: bool) -> None:
    """Follow an operation that was begun before, or print how it stands. Raises TierdError."""
    place = f"/operations/{quote(operation, safe='')}"
    answer = client.get(place)
    if wait and client.shaped(answer, OperationStatus).state == RUNNING:
        answer = _follow(client, place, answer, as_json)
    _conclude(client, answer, as_json)


def _follow(client: Client, place: str, answer: Any, as_json: bool) -> Any:
    """Show an operation until it ends; return its last view as JSON. Raises DaemonError."""
    view = client.shaped(answer, OperationStatus)
    try:
        with closing(client.follow(place)) as events, progress(lines=not as_json) as show:
            show(view)
            for event in events:
                view = client.shaped(event, OperationStatus)
                show(view)
                if view.state != RUNNING:
                    return event
    except KeyboardInterrupt:
        click.echo(
            f"tierd: {view.id} goes on and is no longer followed; see `tierd ctl operations {view.id}`",
            err=True,
        )
        raise click.Abort from None
    except RefusalError:
        raise
    except DaemonError as error:
        raise DaemonError(f"{view.id} was lost sight of: {error}") from error
    raise DaemonError(f"{view.id} was lost sight of: {client.place} did not tell its end")


def show_all(client: Client, *, as_json: bool) -> None:
    """Print the operations that the daemon remembers. Raises DaemonError."""
    answer = client.get("/operations")
    if as_json:
        print_json(answer)
    else:
        print_operations(client.shaped(answer, OperationList))


def _conclude(client: Client, answer: Any, as_json: bool) -> None:
    """Print what became of an operation, or how it stands. Raises TierdError for one that failed."""
    view = client.shaped(answer, OperationStatus)
    if as_json:
        print_json(answer)
    if view.state == FAILED:
        raise _error(view.error, view.code, ModelError if view.kind == "load" else DaemonError)
    if not as_json:
        click.echo(_words(client, view))
        print_phases(view)


def _words(client: Client, view: OperationStatus) -> str:
    """Say what has been reached."""
    if view.state != DONE:
        return f"{view.id} goes on" + (f": {view.phase}" if view.phase else "")
    if view.kind == "activate" and not any(phase.name == "rearm" for phase in view.phases):
        return f"{view.model} was on the GPU already"
    if view.kind == "load":
        return f"{view.model} is loaded" + _place(client, view.model)
    return _ENDS.get(view.kind, "{kind} of {model} is done").format(kind=view.kind, model=view.model)


def _place(client: Client, model: str) -> str:
    """Say where a model runs that was loaded, and why it is not on the GPU."""
    for status in client.shaped(client.get("/status"), Status).models:
        if status.id == model:
            where = "not on the GPU" if status.outcome == "cpu" else "not whole on the GPU"
            return f" ({status.outcome})" + (f", {where}: {status.decline}" if status.decline else "")
    return ""


def _error(message: str, code: str, otherwise: type[TierdError] = DaemonError) -> TierdError:
    """Return the error that a code stands for, in one line."""
    return _ERRORS.get(code, otherwise)(" ".join(message.split()))
