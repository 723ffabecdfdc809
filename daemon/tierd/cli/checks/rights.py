"""The files through which a driver reaches a GPU, and who may open them."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from tierd.cli.checks.finding import Finding, note

_NODES = ("dri/renderD*", "nvidiactl", "nvidia[0-9]*")


def user() -> str:
    """Return whose rights this process has."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def rights(devices: Path = Path("/dev")) -> Finding:
    """Say whether GPUs may be opened. devices: the folder of the system's device files."""
    subject = "rights"
    try:
        nodes = sorted(node for pattern in _NODES for node in devices.glob(pattern))
        if not nodes and os.path.lexists(devices / "dri"):
            os.scandir(devices / "dri").close()
    except PermissionError:
        return note(subject, f"{user()} may not look into {devices / 'dri'}", f"chmod a+rx {devices / 'dri'}")
    if not nodes:
        text = f"no GPU has a file in {devices / 'dri'}: the kernel has no driver for one"
        return note(subject, text, f"in a container, hand the GPU in, as with --device {devices / 'dri'}")
    barred = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK, effective_ids=True)]
    if not barred:
        names = ", ".join(map(str, nodes))
        return Finding(subject=subject, text=f"{user()} may open {names}")
    return note(subject, "; ".join(map(_who, barred)), _admit(barred[0]))


def _who(node: Path) -> str:
    facts = node.stat()
    return f"{user()} may not open {node}, which is {_group(facts)}'s ({stat.filemode(facts.st_mode)})"


def _admit(node: Path) -> str:
    facts = node.stat()
    if facts.st_gid == 0 or facts.st_mode & 0o060 != 0o060:
        return f"sudo chgrp render {node} && sudo chmod g+rw {node}; udev's rules set that at the next start"
    return f"sudo usermod -aG {_group(facts)} {user()}, then log in again"


def _group(facts: os.stat_result) -> str:
    try:
        return grp.getgrgid(facts.st_gid).gr_name
    except KeyError:
        return str(facts.st_gid)
