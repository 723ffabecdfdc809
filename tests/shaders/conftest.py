from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu import Gpu


@pytest.fixture(scope="session")
def gpu() -> Iterator[Gpu]:
    """A device that the validation layer watches; that it has found nothing is checked at the end."""
    gpu = Gpu()
    yield gpu
    gpu.close()
    assert gpu.device.messages == []
