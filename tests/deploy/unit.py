"""The unit of the daemon, read as systemd reads it."""

from __future__ import annotations

import subprocess
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SYSTEMD = DEPLOY / "systemd"


def directives(path: Path, section: str) -> list[tuple[str, str]]:
    """Return the lines NAME=VALUE of a section, in order."""
    here, found = "", []
    for line in path.read_text().splitlines():
        if line.startswith("["):
            here = line.strip("[]")
        elif here == section and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.append((name, value))
    return found


def system_calls(filters: list[str]) -> set[str]:
    """Return the names of what the values of SystemCallFilter= let pass, the first of which allows."""
    allowed = _members("@default")
    for value in filters:
        for name in value.removeprefix("~").split():
            members = _members(name) if name.startswith("@") else {name}
            allowed = allowed - members if value.startswith("~") else allowed | members
    return allowed


def _members(group: str) -> set[str]:
    listed = subprocess.run(
        ["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True
    )
    names = {line.strip() for line in listed.stdout.splitlines() if line.startswith("    ")}
    names = {name for name in names if not name.startswith("#")}
    inner = {name for name in names if name.startswith("@")}
    return (names - inner).union(*map(_members, inner))
