"""The admin token, which the server and `tierd ctl` read from the same file."""

from __future__ import annotations

from pathlib import Path

from tierd.errors import SettingsError
from tierd.http.private import read_private

SETTING = "admin.token_file"
# A shorter one could be guessed.
MIN_TOKEN = 16


def read_token(path: Path) -> str:
    """Return the token that a file holds, without white space around it. Raises SettingsError."""
    try:
        token = read_private(path, SETTING).decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise SettingsError(f"{SETTING}: {path} holds more than ASCII characters") from error
    if len(token) < MIN_TOKEN or not token.isprintable() or " " in token:
        raise SettingsError(
            f"{SETTING}: {path} must hold one word of {MIN_TOKEN} characters or more; "
            f"`openssl rand -hex 32` makes a good one"
        )
    return token
