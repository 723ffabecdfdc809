"""Vulkan's drivers: the manifests that the loader finds, and the graphics cards that would want one.

Where the loader looks: https://github.com/KhronosGroup/Vulkan-Loader/blob/main/docs/LoaderDriverInterface.md
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tierd.backends.vkapi.loader import DRIVERS_BESIDE, DRIVERS_INSTEAD
from tierd.cli.checks.finding import Finding, note

_NVIDIA = "0x10de"
_VENDORS = {_NVIDIA: "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_DISPLAY = "0x03"  # PCI's class of display controllers
MESA = "sudo apt install mesa-vulkan-drivers"


def drivers(cards: Sequence[str], environment: Mapping[str, str] = os.environ) -> Finding:
    """Say which drivers the loader finds. cards: see `graphics_cards`."""
    subject = "drivers"
    named = next((name for name in DRIVERS_INSTEAD if environment.get(name)), None)
    manifests = _named(environment[named]) if named else _installed(environment)
    usable = [manifest for manifest in manifests if _is_manifest(manifest)]
    if usable:
        names = ", ".join(manifest.name for manifest in usable)
        return Finding(subject=subject, text=f"{names}{f', named by {named}' if named else ''}")
    if named:
        text = f"{named} names {environment[named]}, where there is no driver"
        return note(subject, text, f"unset {named}")
    return note(subject, "no Vulkan driver is installed", remedy_for(cards))


def remedy_for(cards: Sequence[str]) -> str:
    """Return how to get a driver for one of these cards."""
    if "NVIDIA" in cards:
        return "sudo apt install nvidia-driver nvidia-vulkan-icd (of Debian's non-free), then reboot"
    return MESA


def graphics_cards(devices: Path = Path("/sys/bus/pci/devices")) -> list[str]:
    """Return the vendors of the graphics cards. devices: the kernel's folder of those on PCI."""
    found = []
    for device in sorted(devices.glob("*")):
        try:
            if (device / "class").read_text().startswith(_DISPLAY):
                vendor = (device / "vendor").read_text().strip()
                found.append(_VENDORS.get(vendor, f"vendor {vendor}"))
        except OSError:
            continue
    return found


def cards_found(cards: Sequence[str]) -> Finding:
    """Say which graphics cards there are."""
    if not cards:
        return Finding(subject="graphics cards", text="none on PCI")
    return Finding(subject="graphics cards", text=", ".join(cards))


def _named(paths: str) -> list[Path]:
    """Return the manifests of a list of files and folders."""
    found: list[Path] = []
    for path in map(Path, filter(None, paths.split(":"))):
        found.extend(sorted(path.glob("*.json")) if path.is_dir() else [path])
    return found


def _installed(environment: Mapping[str, str]) -> list[Path]:
    """Return the manifests in the folders that the loader searches."""
    home = environment.get("HOME", "/")
    lists = (
        environment.get("XDG_CONFIG_HOME") or f"{home}/.config",
        environment.get("XDG_CONFIG_DIRS") or "/etc/xdg",
        "/etc",
        environment.get("XDG_DATA_HOME") or f"{home}/.local/share",
        environment.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share",
    )
    roots = dict.fromkeys(root for each in lists for root in each.split(":") if root)
    there = [manifest for root in roots for manifest in sorted(Path(root, "vulkan", "icd.d").glob("*.json"))]
    return there + _named(environment.get(DRIVERS_BESIDE, ""))


def _is_manifest(path: Path) -> bool:
    """Whether a file names a driver's library, which is there if it is named by a path."""
    try:
        library = str(json.loads(path.read_text(encoding="utf-8"))["ICD"]["library_path"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return "/" not in library or (path.parent / library).exists()
