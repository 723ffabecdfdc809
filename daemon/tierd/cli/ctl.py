"""`tierd ctl`: where the admin API of a running daemon is, and what it is asked to load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tierd.cli.client import Client, at_socket, at_url
from tierd.cli.token import read_token
from tierd.errors import SettingsError
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


def load_body(client: Client, model: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of /models/load. model: a file or an id. wanted: by name; None where nothing was said.

    Raises SettingsError where an id is to get another one.
    """
    body = {name: value for name, value in wanted.items() if value is not None}
    if "chat_template" in body:
        body["chat_template"] = _file(client, body["chat_template"])
    if model.endswith(".gguf") or model.startswith(("/", "./", "../")):
        return {**body, "path": _file(client, model)}
    if "id" in body:
        raise SettingsError(f"--id goes with a file; {model!r} is an id already (a file begins with / or ./)")
    return {**body, "id": model}


def _file(client: Client, name: str) -> str:
    """Return a file as the daemon is to look it up: by its whole path where both see it."""
    here = client.local and (name.startswith(("./", "../")) or os.path.exists(name))
    return str(Path(name).absolute()) if here else name
