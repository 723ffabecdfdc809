"""Where the admin API is served."""

from __future__ import annotations

import logging
import socket
from contextlib import ExitStack
from pathlib import Path

from tierd.cli.token import read_token
from tierd.errors import SettingsError
from tierd.http.listeners import listen, listen_at, url
from tierd.settings import AdminSettings, admin_sockets

log = logging.getLogger(__name__)


class AdminDoors:
    """The listeners of the admin API, each with the token that it asks for, None for none."""

    def __init__(self, settings: AdminSettings, stack: ExitStack) -> None:
        """Open them; the stack closes them. Raises SettingsError."""
        self.listeners: list[tuple[socket.socket, str | None]] = []
        self._places: list[str] = []
        self._refused = ""
        if settings.socket != "off":
            automatic = settings.socket == "auto"
            path = admin_sockets()[0] if automatic else Path(settings.socket)
            try:
                self.listeners.append((stack.enter_context(listen_at(path)), None))
                self._places.append(str(path))
            except SettingsError as error:
                if not automatic:
                    raise
                self._refused = str(error)
        if settings.listen:
            assert settings.token_file is not None  # load_settings has seen to it
            token = read_token(settings.token_file)
            listener = stack.enter_context(listen(settings.listen, "admin.listen"))
            self.listeners.append((listener, token))
            self._places.append(url(listener))

    def announce(self) -> None:
        """Log where the admin API is, and where it could not be."""
        if self._refused:
            log.warning("no admin socket; %s", self._refused)
        if self._places:
            log.info("the admin API is at %s", " and ".join(self._places))
