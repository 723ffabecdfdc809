from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tierd.engine import Catalogue
from tierd.errors import InvalidRequestError, ModelNotFoundError, SettingsError, UnavailableError
from tierd.http import Roster
from tierd.settings import ModelSettings, Settings

A = ModelSettings(id="a", path=Path("/a.gguf"), default=True, weight=2)
B = ModelSettings(id="b", path=Path("/b.gguf"))


@pytest.fixture
def roster() -> Roster:
    return Roster(Settings(models=(B, A)))


def test_what_is_known_is_wanted_by_name(roster: Roster) -> None:
    assert roster.wanted({"id": "a"}) == A
    assert roster.wanted({"id": "b", "streams": 2}) == replace(B, streams=2)


def test_a_file_is_wanted_by_its_path(roster: Roster) -> None:
    assert roster.wanted({"path": "/c.gguf"}) == ModelSettings(id="c", path=Path("/c.gguf"))
    # What is known by that name plays no part.
    assert roster.wanted({"path": "/c.gguf", "id": "a"}) == ModelSettings(id="a", path=Path("/c.gguf"))


def test_what_was_loaded_is_known_from_then_on_but_what_is_configured_stays(roster: Roster) -> None:
    roster.add(replace(B, path=Path("/new.gguf")))
    roster.add(ModelSettings(id="c", path=Path("/c.gguf"), weight=5))
    assert roster.wanted({"id": "b"}).path == B.path
    assert roster.wanted({"id": "c"}).weight == 5
    assert roster.unloaded(Catalogue()) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("table", "kind", "message"),
    [
        ({}, InvalidRequestError, "it takes the `id` of a model that was configured or loaded before, or"),
        ({"id": 7}, InvalidRequestError, "it takes the `id`"),
        ({"id": "c"}, ModelNotFoundError, "there is no model 'c' to load; known: b, a; give the `path` of"),
        ({"id": "a", "streems": 1}, SettingsError, "streems is not a setting; did you mean streams?"),
        ({"path": None}, SettingsError, "path must be a path in quotes, not None"),
    ],
)
def test_what_is_wanted_wrongly_is_refused(
    roster: Roster, table: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        roster.wanted(table)
    assert str(caught.value).startswith(message)


def test_a_model_that_is_not_loaded_says_so(roster: Roster) -> None:
    for name in (None, "a"):
        with pytest.raises(ModelNotFoundError) as caught:
            roster.resolve(Catalogue(), name)
        assert str(caught.value) == (
            "the model 'a' is not loaded, an administrator can load it; models served: none"
        )
        assert caught.value.param == "model"


def test_what_loads_is_waited_for_and_who_ends_says_so(roster: Roster) -> None:
    with pytest.raises(UnavailableError, match="'b' is still loading"):
        roster.resolve(Catalogue(loading=("a", "b")), "b")
    with pytest.raises(UnavailableError, match="the default model is not ready"):
        roster.resolve(Catalogue(loading=("a", "b")))
    for name in (None, "a", "unknown"):
        with pytest.raises(UnavailableError, match="shutting down"):
            roster.resolve(Catalogue(closed="the server is shutting down"), name)
    with pytest.raises(ModelNotFoundError, match="there is no model 'c'"):
        roster.resolve(Catalogue(), "c")


def test_without_a_default_nobody_says_that_it_is_not_loaded() -> None:
    with pytest.raises(UnavailableError, match="the default model is not ready"):
        Roster(Settings()).resolve(Catalogue())
