"""Files for the rows that the bank's memory does not hold: one for each entry, none outlives the process.

A file is its header, which says whose rows they are, then the rows, store by store, then a checksum of
all that. It is read back only as a whole, and believed only when it is as it was written. One thread
writes and reads; it owns nothing: it gets jobs and posts how they went.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import secrets
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from tierd.errors import SettingsError
from tierd.settings import StateSettings

Rows = npt.NDArray[np.uint8]

_MIB = 1 << 20
_SLICE = 4 * _MIB  # written or read at once
_CHECKSUM_BYTES = 4  # CRC-32: against damage, not malice, and five times as fast as a digest
_SUFFIX = ".rows"
# What stays free of a disk on which no limit was set.
_FREE_SHARE = 0.05
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
        return len(self.header) + sum(rows.nbytes for rows in self.rows) + _CHECKSUM_BYTES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpillDone:
    """A job is done. problem: why it failed, "" when it did not. full: for want of room."""

    job: SpillJob
    problem: str = ""
    full: bool = False


class Spill:
    """A folder of files, and the thread that writes and reads them.

    limit: bytes that all files may take, as far as the disk has room for them. run: differs each time, so
    that no file of another process can be taken for one of this.
    """

    def __init__(self, folder: Path, post: Callable[[SpillDone], None], limit: int) -> None:
        """Make the folder, lock it and remove what an earlier run has left there. Raises SettingsError.

        post: called by the thread with each job that is done.
        """
        self.limit = limit
        self.run = secrets.token_hex(8)
        self._folder = folder
        self._post = post
        self._numbers = itertools.count()
        self._work: SimpleQueue[SpillJob | Path | None] = SimpleQueue()
        self._lock = _claim_folder(folder)
        # A daemon: a hung disk must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="tierd-spill", daemon=True)
        self._thread.start()

    def new_path(self) -> Path:
        """Return the path of a file that there has never been in this run."""
        return self._folder / f"{next(self._numbers)}{_SUFFIX}"

    def start(self, job: SpillJob) -> None:
        """Do a job after all that was asked for before. Never blocks."""
        self._work.put(job)

    def remove(self, path: Path) -> None:
        """Remove a file after all that was asked for before. Never blocks."""
        self._work.put(path)

    def close(self, timeout: float | None = None) -> bool:
        """Finish what was asked for, and remove all files. Returns whether that was done in time."""
        self._work.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            if isinstance(work, Path):
                _remove(work)
            else:
                self._post(carry_out(work))
        _remove_all(self._folder)
        os.close(self._lock)


def open_spill(settings: StateSettings, post: Callable[[SpillDone], None]) -> Spill | None:
    """Return the spill that the settings ask for, None without a folder. Raises SettingsError."""
    if settings.dir is None:
        return None
    return Spill(settings.dir / "bank", post, settings.max_mb * _MIB or 1 << 62)


def header_of(what: dict[str, object]) -> bytes:
    """Return the header that says so: a line that names the format, then a line of JSON."""
    return b"tierd rows 1\n" + json.dumps(what, sort_keys=True).encode() + b"\n"


def carry_out(job: SpillJob) -> SpillDone:
    """Do a job. Never raises; of what it could not write nothing is left."""
    try:
        problem = _read(job) if job.reads else _write(job)
    except OSError as error:
        full = not job.reads and error.errno in _FULL
        return SpillDone(job=job, problem=error.strerror or str(error), full=full)
    except Exception as error:  # the job's failure, not the thread's
        return SpillDone(job=job, problem=f"{type(error).__name__}: {error}")
    return SpillDone(job=job, problem=problem)


def _write(job: SpillJob) -> str:
    disk = os.statvfs(job.path.parent)
    if disk.f_bavail * disk.f_frsize - job.size < _FREE_SHARE * disk.f_blocks * disk.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(job.path, flags, 0o600), "wb") as file:
            checksum = zlib.crc32(job.header)
            file.write(job.header)
            for part in _slices(job.rows):
                checksum = zlib.crc32(part, checksum)
                file.write(part)
            file.write(checksum.to_bytes(_CHECKSUM_BYTES, "little"))
    except BaseException:
        _remove(job.path)
        raise
    return ""


def _read(job: SpillJob) -> str:
    with open(os.open(job.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        if os.fstat(file.fileno()).st_size != job.size:
            return "it has another size than it was written with"
        if file.read(len(job.header)) != job.header:
            return "it holds other rows than those that were written"
        checksum = zlib.crc32(job.header)
        for part in _slices(job.rows):
            if file.readinto(part) != len(part):
                return "it ends early"
            checksum = zlib.crc32(part, checksum)
        if int.from_bytes(file.read(), "little") != checksum:
            return "its checksum does not fit"
    return ""


def _slices(rows: tuple[Rows, ...]) -> Iterator[memoryview]:
    for store in rows:
        whole = store.reshape(-1).data
        for start in range(0, len(whole), _SLICE):
            yield whole[start : start + _SLICE]


def _claim_folder(folder: Path) -> int:
    """Make the folder private, lock and empty it; return the lock's descriptor. Raises SettingsError."""
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
        _remove_all(folder)
    except BlockingIOError:
        raise SettingsError(f"state.dir: another tierd uses {folder}; choose another one") from None
    except OSError as error:
        raise SettingsError(f"state.dir: cannot use {folder}: {error.strerror}") from error
    return lock


def _remove_all(folder: Path) -> None:
    for path in folder.glob(f"*{_SUFFIX}"):
        _remove(path)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # it is in nobody's way: no path is used twice, and the next start tries again
        pass
