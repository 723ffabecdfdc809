"""The folders that tierd writes to, and whether it may."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tierd.backends.resident.image import default_directory
from tierd.cli.checks.finding import Finding, note, problem
from tierd.cli.checks.rights import user
from tierd.errors import SettingsError
from tierd.kv.spill import check_folder
from tierd.settings import AdminSettings, StateSettings, admin_sockets


def cache() -> Finding:
    """Say whether packed weights and compiled shaders can be kept."""
    folder = default_directory().parent
    obstacle = obstacle_to(folder)
    if obstacle:
        text = f"packed weights cannot be kept: {obstacle}; they are packed at each start, and take memory"
        return note("cache", text, "set XDG_CACHE_HOME to a folder that may be written to")
    return Finding(subject="cache", text=f"{folder} may be written to")


def state(settings: StateSettings) -> Finding:
    """Say whether parked K/V can be kept in files."""
    if settings.dir is None:
        return Finding(
            subject="state",
            text="state.dir is not set: K/V that memory does not hold is dropped, none outlives a restart",
        )
    obstacle = obstacle_to(settings.dir)
    if obstacle:
        remedy = f"sudo install -d -m 0700 -o {user()} {settings.dir}"
        return problem("state", f"state.dir cannot be used: {obstacle}", remedy, SettingsError)
    try:
        in_use = check_folder(settings.dir)
    except SettingsError as error:
        return problem("state", str(error), "", SettingsError)
    if in_use:
        text = f"another tierd uses {settings.dir}: one that is started beside it ends at once"
        return note("state", text, "end that one, or set state.dir to another folder")
    return Finding(subject="state", text=f"{settings.dir} may be written to")


def admin_socket(settings: AdminSettings) -> Finding:
    """Say whether the admin API can have its socket."""
    subject = "admin socket"
    if settings.socket == "off":
        return Finding(subject=subject, text="admin.socket is off")
    path = admin_sockets()[0] if settings.socket == "auto" else Path(settings.socket)
    obstacle = obstacle_to(path.parent)
    if not obstacle:
        return Finding(subject=subject, text=f"{path} can be made")
    text, remedy = f"{path} cannot be made: {obstacle}", f"sudo install -d -m 0700 -o {user()} {path.parent}"
    if settings.socket == "auto":
        return note(subject, f"{text}; tierd serves without", f"{remedy}, or set XDG_RUNTIME_DIR")
    return problem(subject, text, remedy, SettingsError)


def obstacle_to(folder: Path) -> str:
    """Return why this process cannot write to a folder, or make it; "" where it can. Makes nothing."""
    try:
        there = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
        facts = there.stat()
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    if not stat.S_ISDIR(facts.st_mode):
        return f"{there} is no folder"
    if os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        return ""
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        return f"{there} is on a file system that is read-only"
    return f"{user()} may not write to {there} ({stat.filemode(facts.st_mode)})"
