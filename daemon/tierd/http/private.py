"""Files that hold secrets: nobody but their owner may write them, and their owner and its group read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tierd.errors import SettingsError

_FORBIDDEN = stat.S_IWGRP | stat.S_IRWXO


def read_private(path: Path, setting: str) -> bytes:
    """Return what a file holds. Raises SettingsError, which names the setting, where others may use it."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read()
    except OSError as error:
        raise SettingsError(f"{setting}: cannot read {path}: {error.strerror}") from error
    if mode & _FORBIDDEN:
        raise SettingsError(f"{setting}: others may use {path}, mode {mode:o}; run: chmod 600 {path}")
    return content
