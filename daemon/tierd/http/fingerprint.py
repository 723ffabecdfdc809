"""OpenAI's `system_fingerprint`: changes when the build or the model's file does, and only then."""

from __future__ import annotations

import hashlib

from tierd import __version__
from tierd.settings import ModelSettings


def system_fingerprint(model: ModelSettings) -> str:
    """Return `fp_` and ten hexadecimal digits. A file that cannot be looked at counts by its name alone."""
    try:
        status = model.path.stat()
        file = f"{status.st_size} {status.st_mtime_ns}"
    except OSError:
        file = ""
    known = f"{__version__}\n{model.id}\n{model.path.name}\n{file}\n{model.codec}"
    return "fp_" + hashlib.sha256(known.encode()).hexdigest()[:10]
