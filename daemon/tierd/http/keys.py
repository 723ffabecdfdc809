"""The API keys that a file names: who may call, and under what name.

    NAME HASH     a line for each key: the SHA-256 of the key, in 64 hexadecimal digits
    # …           says nothing; nor does an empty line

Keys are made at random, of 256 bits, so that there is nothing to guess: a slow hash, which is for words that
people choose, would only cost time. The file holds no key, and who reads it gets none.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from tierd.errors import SettingsError
from tierd.http.private import read_private
from tierd.settings import key_name

log = logging.getLogger(__name__)

SETTING = "server.api_keys_file"
PREFIX = "sk-tierd-"
KEY_BYTES = 32
# The file is looked at once in so many seconds, while requests come.
LOOK_S = 1.0

_LINE = re.compile(rb"(?P<name>\S+)[ \t]+(?P<digest>[0-9a-fA-F]{64})")


def make_key() -> str:
    """Return a new key."""
    return PREFIX + secrets.token_hex(KEY_BYTES)


def line_of(name: str, key: str) -> str:
    """Return the line of a key in the file. Raises SettingsError for a name that cannot be."""
    complaint = key_name(name)
    if complaint:
        raise SettingsError(f"the name of a key must {complaint}, not {name!r}")
    return f"{name} {digest_of(key.encode()).hex()}"


def digest_of(key: bytes) -> bytes:
    """Return what the file has of a key."""
    return hashlib.sha256(key).digest()


class Keys:
    """The keys of a file. When it changes it is read again; while it is no good, those from before hold."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises SettingsError."""
        self._path = path
        self._seen = _mark(path)
        self._keys = read_keys(path)
        self._looked = time.monotonic()

    def name_of(self, shown: Sequence[bytes]) -> str | None:
        """Return the name of the first of these keys that is in the file, None where none is.

        How long it takes tells nothing of the keys there are.
        """
        self._look()
        found: list[str] = []
        for digest in map(digest_of, shown):
            found += [name for name, known in self._keys if hmac.compare_digest(known, digest)]
        return found[0] if found else None

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        mark = _mark(self._path)
        if mark == self._seen:
            return
        self._seen = mark
        try:
            self._keys = read_keys(self._path)
        except SettingsError as error:
            log.error("%s; the keys from before hold", error)
        else:
            log.info("%s: read %s again, it has %d keys", SETTING, self._path, len(self._keys))


def read_keys(path: Path) -> list[tuple[str, bytes]]:
    """Return the names in a file of keys, each with a key's digest; a name may stand there several times.

    Raises SettingsError: it cannot be read, others may, a line is not as it should be, or has another's key.
    """
    keys: list[tuple[str, bytes]] = []
    owners: dict[bytes, str] = {}
    for number, line in enumerate(read_private(path, SETTING).splitlines(), 1):
        text = line.strip()
        if not text or text.startswith(b"#"):
            continue
        match = _LINE.fullmatch(text)
        name = "" if match is None else match["name"].decode("ascii", "replace")
        if match is None or key_name(name):
            raise SettingsError(
                f"{SETTING}: {path}, line {number}: must be a name and the SHA-256 of a key; "
                "`tierd key NAME` makes such a line"
            )
        digest = bytes.fromhex(match["digest"].decode())
        owner = owners.setdefault(digest, name)
        if owner != name:
            raise SettingsError(
                f"{SETTING}: {path}, line {number}: {name} has a key of {owner}'s; a key is for one name"
            )
        keys.append((name, digest))
    return keys


def _mark(path: Path) -> tuple[int, ...]:
    """Return what changes with a file, nothing where there is none."""
    try:
        now = path.stat()
    except OSError:
        return ()
    return now.st_ino, now.st_size, now.st_mode, now.st_mtime_ns, now.st_ctime_ns
