"""`tierd ctl`: where the admin API of a running daemon is."""

from __future__ import annotations

from pathlib import Path

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
