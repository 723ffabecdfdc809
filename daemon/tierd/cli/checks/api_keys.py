"""The keys of those that are served."""

from __future__ import annotations

from tierd.cli.checks.finding import Finding, note, problem
from tierd.errors import SettingsError
from tierd.http.keys import read_keys
from tierd.settings import ServerSettings


def api_keys(settings: ServerSettings) -> Finding:
    """Say who may call."""
    subject, path = "API keys", settings.api_keys_file
    if path is None:
        return Finding(subject=subject, text="none is asked for: server.api_keys_file is not set")
    try:
        keys = read_keys(path)
    except SettingsError as error:
        return problem(subject, str(error), "", SettingsError)
    if not keys:
        return note(subject, f"{path} has none, so that nobody may call", "tierd key NAME makes one")
    names = {name for name, _ in keys}
    return Finding(subject=subject, text=f"{len(keys)} of {len(names)} names in {path}")
