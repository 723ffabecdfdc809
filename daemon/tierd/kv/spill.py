"""The folder of the bank's files of rows, and the thread that writes and reads them.

Files outlive the process: the next one finds them here. One process at a time has the folder. The thread owns
nothing: it gets jobs and posts how they went.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tierd.errors import SettingsError
from tierd.kv import row_files
from tierd.kv.row_files import DRAFT, SUFFIX, Header, RowFileError, Rows
from tierd.settings import StateSettings

log = logging.getLogger(__name__)

_BANK = "bank"  # the folder in state.dir
_LOCK = "lock"  # the file in it
_MIB = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpillJob:
    """Write rows to a new file, or (`reads`) fill them from one.

    header: what the file begins with. rows: for each row store, shape (positions, bytes), contiguous; nobody
    else touches them until the job is done.
    """

    path: Path
    header: bytes
    rows: tuple[Rows, ...]
    reads: bool

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return row_files.size_of(self.header, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpillDone:
    """A job is done. problem: why it failed, "" when it did not. full: for want of room."""

    job: SpillJob
    problem: str = ""
    full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpillCleared:
    """Files that were removed are gone for good. problem: why one of them is not, "" when all are."""

    then: Callable[[str], None]
    problem: str = ""


class Spill:
    """A folder of files, and the thread that writes and reads them.

    limit: bytes that all files may take, as far as the disk has room for them. found: the files that an
    earlier process has left, with their headers.
    """

    def __init__(self, folder: Path, post: Callable[[SpillDone | SpillCleared], None], limit: int) -> None:
        """Make the folder, lock it, and look through what lies there. Raises SettingsError.

        What is no good is removed, with a line in the log. post: called by the thread with each job that is
        done, and each `clear`.
        """
        self.limit = limit
        self._folder = folder
        self._post = post
        self._work: SimpleQueue[SpillJob | Path | list[Rows] | Callable[[str], None] | None] = SimpleQueue()
        self._lock = _claim_folder(folder)
        numbers = [int(path.stem) for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal()]
        self._numbers = itertools.count(max(numbers, default=-1) + 1)
        self.found = _look_through(folder)
        # A daemon: a hung disk must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="tierd-spill", daemon=True)
        self._thread.start()

    def new_path(self) -> Path:
        """Return the path of a file that there has never been while this one was in use."""
        return self._folder / f"{next(self._numbers)}{SUFFIX}"

    def start(self, job: SpillJob) -> None:
        """Do a job after all that was asked for before. Never blocks."""
        self._work.put(job)

    def remove(self, path: Path) -> None:
        """Remove a file after all that was asked for before. Never blocks."""
        self._work.put(path)

    def clear(self, then: Callable[[str], None]) -> None:
        """Post `SpillCleared` once all that was to be removed before is gone for good. Never blocks."""
        self._work.put(then)

    def free(self, rows: list[Rows]) -> None:
        """Let go of rows that the caller has no more use for: to give much memory back takes a while."""
        self._work.put(rows)

    def close(self, timeout: float | None = None) -> bool:
        """Finish what was asked for, and let others have the folder. Returns whether it was done in time."""
        self._work.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        problem = ""  # of the removals since the last clear
        while (work := self._work.get()) is not None:
            if isinstance(work, Path):
                problem = problem or row_files.remove(work)
            elif isinstance(work, SpillJob):
                self._post(carry_out(work))
            elif callable(work):
                self._post(SpillCleared(then=work, problem=problem or _sync(self._folder)))
                problem = ""
            del work  # before it waits for more
        os.close(self._lock)


def open_spill(settings: StateSettings, post: Callable[[SpillDone | SpillCleared], None]) -> Spill | None:
    """Return the spill that the settings ask for, None without a folder. Raises SettingsError."""
    if settings.dir is None:
        return None
    try:
        _make_private(settings.dir, may_be_link=True)
    except OSError as error:
        raise _unusable(settings.dir, error) from error
    return Spill(settings.dir / _BANK, post, settings.max_mb * _MIB or 1 << 62)


def check_folder(folder: Path) -> bool:
    """Return whether another process has what lies at state.dir; makes nothing.

    Raises SettingsError where it is not for this user alone, or cannot be locked.
    """
    lock = folder / _BANK / _LOCK
    for place, may_be_link in ((folder, True), (folder / _BANK, False)):
        try:
            if os.path.lexists(place):
                _check_private(place, may_be_link=may_be_link)
        except OSError as error:
            raise _unusable(place, error) from error
    try:
        if os.path.lexists(lock):
            os.close(_take(lock))
    except BlockingIOError:
        return True
    except OSError as error:
        raise _unusable(lock, error) from error
    return False


def carry_out(job: SpillJob) -> SpillDone:
    """Do a job. Never raises; of what it could not write nothing is left."""
    try:
        if job.reads:
            row_files.read(job.path, job.header, job.rows)
        else:
            row_files.write(job.path, job.header, job.rows)
    except OSError as error:
        full = not job.reads and error.errno in _FULL
        return SpillDone(job=job, problem=error.strerror or str(error), full=full)
    except RowFileError as error:
        return SpillDone(job=job, problem=str(error))
    except Exception as error:  # the job's failure, not the thread's
        return SpillDone(job=job, problem=f"{type(error).__name__}: {error}")
    return SpillDone(job=job)


def _sync(folder: Path) -> str:
    try:
        row_files.sync_folder(folder)
    except OSError as error:
        return f"cannot write {folder}: {error.strerror}"
    return ""


def _make_private(folder: Path, *, may_be_link: bool) -> None:
    """Make a folder into which nobody else may look, or find it so. Raises SettingsError, OSError."""
    with suppress(FileExistsError):
        folder.mkdir(0o700, parents=True)
        with suppress(PermissionError):  # a folder may be written to that cannot be read
            row_files.sync_folder(folder.parent)
    _check_private(folder, may_be_link=may_be_link)


def _check_private(folder: Path, *, may_be_link: bool) -> None:
    """See to it that what is there is a folder of this user's alone. Raises SettingsError, OSError."""
    found = folder.stat(follow_symlinks=may_be_link)
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        raise SettingsError(f"state.dir: {folder} is a link; remove it, or move state.dir to where it leads")
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if found.st_uid != os.geteuid():
        raise SettingsError(
            f"state.dir: {folder} belongs to another user; choose another one, or run: "
            f"chown {os.geteuid()} {folder}"
        )
    if mode & 0o077:
        raise SettingsError(f"state.dir: others may use {folder}, mode {mode:o}; run: chmod 700 {folder}")


def _claim_folder(folder: Path) -> int:
    """Make the folder private and lock it; return the lock's descriptor. Raises SettingsError."""
    place = folder
    try:
        _make_private(folder, may_be_link=False)
        place = folder / _LOCK
        return _take(place, os.O_CREAT)
    except BlockingIOError:
        raise SettingsError(f"state.dir: another tierd uses {folder}; choose another one") from None
    except OSError as error:
        raise _unusable(place, error) from error


def _take(lock: Path, making: int = 0) -> int:
    """Take a lock; return its descriptor. making: O_CREAT to make its file.

    Raises BlockingIOError where another process has it, and OSError where it cannot be used.
    """
    descriptor = os.open(lock, os.O_RDWR | making | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _unusable(folder: Path, error: OSError) -> SettingsError:
    return SettingsError(f"state.dir: cannot use {folder}: {error.strerror}")


def _look_through(folder: Path) -> dict[Path, Header]:
    """Return the files of a folder whose headers are good; remove the others, and what is half written."""
    for draft in folder.glob(f"*{DRAFT}"):
        row_files.remove(draft)
    found: dict[Path, Header] = {}
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            found[path] = row_files.read_header(path)
        except (RowFileError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            problem = row_files.remove(path)
            done = f"ignored ({problem})" if problem else f"ignored and removed {path}"
            log.warning("state.dir: %s: %s", done, why)
    return found
