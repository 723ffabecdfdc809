from __future__ import annotations

from functools import partial

import pytest

from engine.harness import NULL
from engine.places import PLACES, Slots
from tierd.settings import ModelSettings


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Slots:
    """What opens a model of eight streams, with chunks of so many rows."""
    return partial(PLACES[request.param], ModelSettings(id="null", path=NULL.path, streams=8))
