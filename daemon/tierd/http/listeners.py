"""Sockets to be served on, bound and listening before anything slow begins."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tierd.errors import SettingsError
from tierd.settings import split_address

# Connections that the system accepts on the server's behalf until it takes them.
BACKLOG = 2048
# Whoever may open the admin socket is an administrator.
SOCKET_MODE, DIRECTORY_MODE = 0o600, 0o700


def listen(address: str, setting: str = "server.listen") -> socket.socket:
    """Return a socket that listens on `HOST:PORT`; port 0 takes a free one.

    Raises SettingsError, which names the setting that gave the address.
    """
    host, port = split_address(address)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise SettingsError(
            f"{setting}: cannot listen on {address}: {_reason(error, 'port', 'address')}"
        ) from error
    return listener


@contextmanager
def listen_at(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket that its owner alone may use; it is removed in the end.

    Missing folders are made. A socket that nobody listens on any more is replaced; the folder is locked
    meanwhile, so that of two servers that start together one finds the other.
    Raises SettingsError, which names `admin.socket`.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener:
        try:
            path.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
            with _locked(path.parent):
                _remove_stale(path)
                listener.bind(str(path))
                path.chmod(SOCKET_MODE)  # nobody can connect before it listens
                listener.listen(BACKLOG)
                made = path.stat().st_ino
        except OSError as error:
            raise SettingsError(
                f"admin.socket: cannot listen on {path}: {_reason(error, 'path', 'path')}"
            ) from error
        try:
            yield listener
        finally:
            _remove(path, made)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on. OSError when somebody does, or when it is no socket."""
    if not path.exists():
        return
    if not path.is_socket():
        raise OSError(errno.EEXIST, "a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise OSError(errno.EADDRINUSE, "somebody listens")


def _remove(path: Path, inode: int) -> None:
    """Remove the socket unless another one has taken its place."""
    try:
        if path.stat().st_ino == inode:
            path.unlink()
    except OSError:  # it has gone, with its folder perhaps
        pass


def _reason(error: OSError, taken: str, wrong: str) -> str:
    """Say what is wrong; taken, wrong: what to choose another one of, when it is in use or will not do."""
    if error.errno in (errno.EADDRINUSE, errno.EAGAIN):
        return f"the {taken} is in use; stop what uses it or choose another {taken}"
    if isinstance(error, socket.gaierror):
        return f"{error.strerror}; check the host name"
    # What Python finds by itself has no number, such as a path that is too long for a socket.
    said = str(error) if error.errno is None else os.strerror(error.errno)
    return f"{said}; choose another {wrong}"


def url(listener: socket.socket) -> str:
    """Return the address of a bound TCP socket as a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
