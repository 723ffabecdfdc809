"""The listening socket that systemd hands over, by the protocol of sd_listen_fds(3)."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from tierd.errors import SettingsError

PUBLIC = "public"
_FIRST = 3


def take_listener(environment: MutableMapping[str, str]) -> socket.socket | None:
    """Return the socket that was handed over for the public port; None: none was.

    It is the only one, or the one called PUBLIC. What tells of them is removed from the environment.
    Raises SettingsError where there is no such one, or it does not listen on TCP.
    """
    process = environment.pop("LISTEN_PID", "")
    count = environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if process != str(os.getpid()) or not count.isdecimal() or int(count) == 0:
        return None
    places = range(_FIRST, _FIRST + int(count))
    for place in places:
        os.set_inheritable(place, False)
    public = [place for place, name in zip(places, names, strict=False) if name == PUBLIC]
    chosen = places if len(places) == 1 else public
    if len(chosen) != 1:
        raise SettingsError(
            f"LISTEN_FDS: {count} sockets were handed over, {len(public)} of them called {PUBLIC!r}; "
            "set FileDescriptorName=public for one"
        )
    listener = socket.socket(fileno=chosen[0])
    if (
        listener.family not in (socket.AF_INET, socket.AF_INET6)
        or listener.type != socket.SOCK_STREAM
        or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    ):
        listener.close()
        raise SettingsError(
            "LISTEN_FDS: the socket that was handed over does not listen on TCP; use ListenStream="
        )
    return listener
