"""Event streams as they come over a connection."""

from __future__ import annotations

import socket


def read_until(connection: socket.socket, end: bytes, data: bytes = b"") -> bytes:
    while end not in data:
        piece = connection.recv(65536)
        assert piece, f"the connection was closed after {data!r}"
        data += piece
    return data


def unchunk(data: bytes) -> bytes:
    """Undo the chunked transfer coding of a whole body."""
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            assert data == b"\r\n"
            return body
        body += data[:length]
        assert data[length : length + 2] == b"\r\n"
        data = data[length + 2 :]
