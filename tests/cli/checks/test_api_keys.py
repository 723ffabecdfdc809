"""What `tierd doctor` says of the keys."""

from __future__ import annotations

from pathlib import Path

from tierd.cli.checks.api_keys import api_keys
from tierd.cli.checks.finding import Verdict
from tierd.errors import SettingsError
from tierd.http.keys import line_of
from tierd.settings import ServerSettings


def test_without_a_file_everybody_may_call() -> None:
    found = api_keys(ServerSettings())
    assert (found.verdict, found.text) == (
        Verdict.OK,
        "none is asked for: server.api_keys_file is not set",
    )


def test_a_file_is_read_as_serving_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    settings = ServerSettings(api_keys_file=path)
    missing = api_keys(settings)
    assert (missing.verdict, missing.error) == (Verdict.PROBLEM, SettingsError)
    assert missing.text == f"server.api_keys_file: cannot read {path}: No such file or directory"
    path.touch(0o600)
    assert (api_keys(settings).verdict, api_keys(settings).remedy) == (
        Verdict.NOTE,
        "tierd key NAME makes one",
    )
    path.write_text("".join(line_of(name, key) + "\n" for name, key in (("a", "1"), ("a", "2"), ("b", "3"))))
    assert (api_keys(settings).verdict, api_keys(settings).text) == (Verdict.OK, f"3 of 2 names in {path}")
    path.chmod(0o644)
    assert (
        api_keys(settings).text
        == f"server.api_keys_file: others may use {path}, mode 644; run: chmod 600 {path}"
    )
