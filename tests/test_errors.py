"""What every error of tierd's tree has in common."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tierd import cli
from tierd.errors import BusyError, DeviceError, one_line


def test_a_message_is_one_line() -> None:
    assert one_line("a\n  b\r\n\n c  d\n") == "a b c  d"
    assert str(DeviceError("Kompute cannot be loaded (libfmt.so.9:\n\tnot found)")) == (
        "Kompute cannot be loaded (libfmt.so.9: not found)"
    )
    assert str(BusyError("wait\na while", retry_after=1)) == "wait a while"
    assert str(DeviceError()) == ""


@pytest.mark.parametrize("error", [click.UsageError("no\n such thing"), OSError("no\n such thing")])
def test_so_is_what_a_command_ends_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail(path: Path | None, **_flags: object) -> None:
        raise error

    monkeypatch.setattr(cli, "load_settings", fail)
    assert cli.main(["doctor"]) in (1, 2)
    assert capsys.readouterr().err == "tierd: no such thing\n"
