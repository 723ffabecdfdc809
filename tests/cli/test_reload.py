"""The settings, read again: what nobody has thought of."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tierd.cli.reload import Reloader
from tierd.http import Roster
from tierd.settings import Settings


def test_a_fault_of_its_own_is_told_and_ends_no_reload(caplog: pytest.LogCaptureFixture) -> None:
    settings, supervision, take = Settings(), Mock(), Mock()
    read = Mock(side_effect=[ValueError("quoted"), settings])
    reloader = Reloader(settings, read, take, supervision, Roster(settings))

    reloader.reload()
    supervision.reloaded.assert_called_once_with(problem="ValueError")
    assert "the settings from before hold" in caplog.text
    assert not take.called

    reloader.reload()
    supervision.reloaded.assert_called_with("")
    take.assert_called_once_with(settings)
