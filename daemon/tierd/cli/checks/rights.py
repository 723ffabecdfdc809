"""The files through which a driver reaches a GPU, and who may open them."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Sequence
from pathlib import Path

from tierd.cli.checks.finding import Finding, note

_NVIDIA_CONTAINER = "--gpus all -e NVIDIA_DRIVER_CAPABILITIES=all"
# What brings the kernel's part of a driver, or what that loads into the card, by vendor.
_KERNEL = {
    "NVIDIA": "sudo apt install nvidia-driver (of Debian's non-free), then reboot",
    "AMD": "sudo apt install firmware-amd-graphics (of Debian's non-free-firmware), then reboot",
    "Intel": "sudo apt install firmware-misc-nonfree (of Debian's non-free-firmware), then reboot",
}
_NODES = ("dri/renderD*", "nvidiactl", "nvidia[0-9]*")


def user() -> str:
    """Return whose rights this process has."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def rights(cards: Sequence[str], devices: Path = Path("/dev")) -> Finding:
    """Say whether GPUs may be opened. cards: see `graphics_cards`. devices: where their files are."""
    subject = "rights"
    try:
        nodes = sorted(node for pattern in _NODES for node in devices.glob(pattern))
        if not nodes and os.path.lexists(devices / "dri"):
            os.scandir(devices / "dri").close()
    except PermissionError:
        return note(subject, f"{user()} may not look into {devices / 'dri'}", f"chmod a+rx {devices / 'dri'}")
    if not nodes:
        return note(subject, *_no_file(cards, devices / "dri"))
    barred = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK, effective_ids=True)]
    if not barred:
        names = ", ".join(map(str, nodes))
        return Finding(subject=subject, text=f"{user()} may open {names}")
    return note(subject, "; ".join(map(_who, barred)), _admit(barred[0]))


def _no_file(cards: Sequence[str], folder: Path) -> tuple[str, str]:
    """Return what it means that no GPU has a file, and the remedy."""
    container = f"in a container, hand the GPU in: --device {folder}, or for NVIDIA's {_NVIDIA_CONTAINER}"
    if not cards:
        return f"there is no GPU: none has a file in {folder}, and PCI has none", container
    text = f"no GPU has a file in {folder}: the kernel has no driver for that of {', '.join(cards)}"
    remedies = [_KERNEL[card] for card in dict.fromkeys(cards) if card in _KERNEL]
    return text, "; ".join([*remedies, container])


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
