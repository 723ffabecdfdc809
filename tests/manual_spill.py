"""A spill without a thread: a test says when a job is done, and how it goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tierd.kv.row_files import Rows
from tierd.kv.spill import Spill, SpillDone, SpillJob, carry_out


class ManualSpill(Spill):
    """Keeps the job that the writer would have; files are real."""

    def __init__(self, folder: Path, limit: int = 1 << 62) -> None:
        self.limit = limit
        self.found = {}
        self.folder = folder
        self.job: SpillJob | None = None
        self._count = 0

    def new_path(self) -> Path:
        self._count += 1
        return self.folder / f"{self._count}.rows"

    def start(self, job: SpillJob) -> None:
        assert self.job is None, "one job at a time, or entries that wait could not be dropped"
        self.job = job

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def clear(self, then: Callable[[str], None]) -> None:
        then("")

    def free(self, rows: list[Rows]) -> None:
        """Do nothing: who has called is the last to refer to them."""

    def finish(self) -> SpillDone:
        """Do the job."""
        job, self.job = self.job, None
        assert job is not None
        return carry_out(job)

    def fail(self, *, full: bool = False) -> SpillDone:
        """Do not do it."""
        job, self.job = self.job, None
        assert job is not None
        return SpillDone(job=job, problem="no luck", full=full)

    @property
    def files(self) -> set[Path]:
        return set(self.folder.iterdir())
