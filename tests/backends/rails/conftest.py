from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backends.rails import models
from tierd.backends.host import HostBackend
from tierd.backends.rails.executor import RailsExecutor

Opener = Callable[..., RailsExecutor]


@pytest.fixture(scope="module")
def host() -> Iterator[HostBackend]:
    backend = HostBackend(2)
    yield backend
    backend.close()


@pytest.fixture
def opened(tmp_path: Path, host: HostBackend) -> Iterator[Opener]:
    """Compile tiny models by format; they are closed at the end."""
    executors = []

    def open_model(format: str = "Q4_1", **options: object) -> RailsExecutor:
        executors.append(models.compiled(models.write(tmp_path, format, **options), host))
        return executors[-1]

    yield open_model
    for executor in executors:
        executor.close()
