from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cli.scripted import BEGUN, DONE, FAILED, HALF_WAY, ID, PAUSING, PLACE, REARMING, Script, scripted, view
from cli.terminal import terminal
from tierd.cli import ctl_progress, main
from tierd.cli.client import at_socket, at_url
from tierd.cli.ctl import load_body
from tierd.settings import ModelSettings

TABLE = """\
phase     ms
pause    3.1
rearm   12.0
in all  16.1
"""


@pytest.fixture
def daemon() -> Iterator[Script]:
    with scripted() as script:
        yield script


class Ctl:
    """`tierd ctl`, asking the scripted daemon."""

    def __init__(self, script: Script, capsys: pytest.CaptureFixture[str]) -> None:
        self.script = script
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Return the exit code, standard output and standard error."""
        code = main(["ctl", "--url", self.script.url, *arguments])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def __call__(self, *arguments: str) -> str:
        code, out, err = self.run(*arguments)
        assert (code, err) == (0, "")
        return out

    def fails(self, code: int, *arguments: str) -> str:
        """Demand an exit code and one line of error, and nothing else; return that line."""
        got, out, err = self.run(*arguments)
        assert (got, out) == (code, "")
        (line,) = err.splitlines()
        return line.removeprefix("tierd: ").replace(self.script.url, "URL")


@pytest.fixture
def ctl(daemon: Script, capsys: pytest.CaptureFixture[str]) -> Ctl:
    return Ctl(daemon, capsys)


class TestFollow:
    def test_people_read_the_phases_as_they_begin_and_what_each_took(self, ctl: Ctl) -> None:
        assert ctl("switch", "smol") == f"pause\nrearm\nsmol is on the GPU\n{TABLE}"

    def test_what_takes_long_says_how_far_it_is(self, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ctl_progress, "EVERY_S", 0)
        assert "pause\nrearm\nrearm 50 %\nsmol is" in ctl("switch", "smol")

    def test_scripts_read_the_last_view_alone(self, ctl: Ctl) -> None:
        assert json.loads(ctl("switch", "smol", "--json")) == DONE

    def test_nobody_waits_who_does_not_want_to(self, ctl: Ctl) -> None:
        assert ctl("switch", "smol", "--no-wait") == f"{ID}\n"
        assert json.loads(ctl("switch", "smol", "--no-wait", "--json")) == BEGUN
        assert ctl.script.followed == 0

    def test_what_is_done_at_once_is_not_followed(self, ctl: Ctl) -> None:
        ctl.script.answers["/models/activate"] = (200, view(state="done"))
        assert ctl("switch", "smol") == "smol was on the GPU already\n"
        assert ctl.script.followed == 0

    @pytest.mark.parametrize(
        ("command", "kind", "words"),
        [
            ("unload", "unload", "smol is unloaded"),
            ("drain", "drain", "no request runs any more, and none is admitted until `tierd ctl resume`"),
            ("resume", "resume", "requests are admitted again"),
            ("drain", "rest", "rest of smol is done"),
        ],
    )
    def test_the_end_is_told_in_words(self, ctl: Ctl, command: str, kind: str, words: str) -> None:
        ctl.script.events = [view(kind=kind, state="done")]
        assert ctl(command, *(["smol"] if command == "unload" else [])) == f"{words}\n"


class TestFailures:
    @pytest.mark.parametrize(
        ("code", "exit_code"),
        [
            ("", 1),
            ("conflict", 1),
            ("device_unavailable", 1),
            ("invalid_setting", 2),
            ("tier_not_reached", 3),
            ("model_not_loadable", 4),
            ("model_file_damaged", 4),
            ("model_not_supported", 4),
        ],
    )
    def test_exit_codes_tell_why(self, ctl: Ctl, code: str, exit_code: int) -> None:
        ctl.script.events = [FAILED | {"code": code}]
        assert ctl.fails(exit_code, "switch", "smol") == "the device is lost"
        ctl.script.answers["/models/load"] = (422, {"error": {"message": "it\nis cut short", "code": code}})
        assert ctl.fails(exit_code, "load", "smol") == "it is cut short"

    @pytest.mark.parametrize(("code", "exit_code"), [({}, 4), ({"code": "tier_not_reached"}, 3)])
    def test_a_load_that_fails_for_no_special_reason_did_not_load_a_model(
        self, ctl: Ctl, code: dict[str, str], exit_code: int
    ) -> None:
        ctl.script.events = [FAILED | {"kind": "load"} | code]
        assert ctl.fails(exit_code, "load", "smol") == "the device is lost"

    def test_scripts_get_the_view_of_what_failed(self, ctl: Ctl) -> None:
        ctl.script.events = [FAILED]
        code, out, err = ctl.run("switch", "smol", "--json")
        assert (code, json.loads(out), err) == (1, FAILED, "tierd: the device is lost\n")

    def test_a_daemon_that_goes_away(self, ctl: Ctl) -> None:
        ctl.script.events = [REARMING]
        code, out, err = ctl.run("switch", "smol")
        assert (code, out) == (1, "rearm\n")
        assert err == (
            f"tierd: {ID} was lost sight of: "
            f"{ctl.script.url} closed the connection in the middle of the answer\n"
        )

    def test_an_operation_that_is_forgotten(self, ctl: Ctl) -> None:
        ctl.script.answers[PLACE] = (404, {"error": {"message": "there is no such operation", "code": "x"}})
        assert ctl.fails(1, "switch", "smol", "--json") == "there is no such operation"
        assert ctl.fails(1, "operations", ID) == "there is no such operation"

    def test_a_stream_that_ends_in_an_error(self, ctl: Ctl) -> None:
        ctl.script.events = [{"error": {"message": "tierd failed", "code": None}}]
        assert ctl.fails(1, "switch", "smol", "--json") == "tierd failed"

    def test_a_stream_that_is_over_before_the_operation_is(self, ctl: Ctl) -> None:
        ctl.script.events = ["[DONE]"]
        assert ctl.fails(1, "switch", "smol", "--json") == f"{ID} was lost sight of: URL did not tell its end"

    @pytest.mark.parametrize("location", ["", "http://elsewhere/operations/1"])
    def test_an_answer_that_does_not_say_where_to_look(self, ctl: Ctl, location: str) -> None:
        ctl.script.location = location
        assert ctl.fails(1, "drain") == "URL does not say where its work can be followed; is it tierd?"

    @pytest.mark.parametrize("command", [["switch", "smol"], ["operations"], ["operations", ID]])
    def test_json_of_another_shape(self, ctl: Ctl, command: list[str]) -> None:
        for path in ("/models/activate", "/operations", PLACE):
            ctl.script.answers[path] = (200, {"operations": 3})
        assert "sent JSON of another shape; is it tierd?" in ctl.fails(1, *command)


class TestBodies:
    @pytest.mark.parametrize(
        ("command", "path", "body"),
        [
            ("switch smol", "/models/activate", {"model": "smol"}),
            ("unload smol", "/models/unload", {"model": "smol"}),
            ("unload smol --limit 2.5", "/models/unload", {"model": "smol", "limit_s": 2.5}),
            ("drain", "/drain", {}),
            ("resume", "/resume", {}),
            ("load org/smol", "/models/load", {"id": "org/smol", "activate": True}),
            ("load /a/b", "/models/load", {"path": "/a/b", "activate": True}),
            ("load ./b", "/models/load", {"path": "./b", "activate": True}),
            (
                "load b.gguf --id b --no-activate --no-preload",
                "/models/load",
                {"path": "b.gguf", "id": "b", "activate": False, "preload": False},
            ),
            (
                "load b --context 4096 --no-ctx-strict --streams 2 --regions 3 --resident-prefill-allowed"
                " --pin --weight 3 --kv-dtype tq4 --require resident --chat-template c.jinja"
                " --penalty-window 64",
                "/models/load",
                {
                    "id": "b",
                    "activate": True,
                    "context": 4096,
                    "ctx_strict": False,
                    "streams": 2,
                    "regions": 3,
                    "resident_prefill_allowed": True,
                    "pin": True,
                    "weight": 3,
                    "kv_dtype": "tq4",
                    "require": "resident",
                    "chat_template": "c.jinja",
                    "penalty_window": 64,
                },
            ),
            (
                "load b --temperature 0 --top-k 40 --top-p 0.9 --min-p 0.1 --repeat-penalty 1.1 "
                "--presence-penalty 0.2 --frequency-penalty 0.3",
                "/models/load",
                {
                    "id": "b",
                    "activate": True,
                    "temperature": 0.0,
                    "top_k": 40,
                    "top_p": 0.9,
                    "min_p": 0.1,
                    "repeat_penalty": 1.1,
                    "presence_penalty": 0.2,
                    "frequency_penalty": 0.3,
                },
            ),
        ],
    )
    def test_what_is_asked_for(self, ctl: Ctl, command: str, path: str, body: dict[str, Any]) -> None:
        assert ctl(*command.split(), "--no-wait") == f"{ID}\n"
        assert ctl.script.asked == [(path, body)]

    def test_every_key_of_a_model_is_an_option(self, ctl: Ctl) -> None:
        shown = ctl("load", "--help")
        keys = {field.name for field in fields(ModelSettings)} - {"path", "default"}
        assert [key for key in keys if f"--{key.replace('_', '-')} " not in shown] == []

    def test_files_that_both_see_go_by_their_whole_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("b.gguf", "c.jinja"):
            (tmp_path / name).touch()
        wanted = {"chat_template": "c.jinja", "context": None}
        near, far = at_socket(tmp_path / "admin.sock"), at_url("http://box:8081")
        assert load_body(near, "b.gguf", wanted) == {
            "path": str(tmp_path / "b.gguf"),
            "chat_template": str(tmp_path / "c.jinja"),
        }
        assert load_body(near, "elsewhere.gguf", {}) == {"path": "elsewhere.gguf"}
        assert load_body(far, "b.gguf", wanted) == {"path": "b.gguf", "chat_template": "c.jinja"}

    def test_an_id_does_not_get_another(self, ctl: Ctl) -> None:
        assert ctl.fails(2, "load", "smol", "--id", "b").startswith("--id goes with a file; 'smol' is an id")


class TestOperations:
    def test_all_as_a_table(self, ctl: Ctl) -> None:
        ctl.script.answers["/operations"] = (200, {"operations": [HALF_WAY, FAILED | {"id": "load-2-ab"}]})
        heading, running, failed, why = ctl("operations").splitlines()
        assert heading.split() == ["operation", "model", "state", "phase", "done", "s"]
        assert running.split() == [ID, "smol", "running", "rearm", "50", "%", "0.0"]
        assert failed.split() == ["load-2-ab", "smol", "failed", "0.0"]
        assert why == "load-2-ab: the device is lost"
        assert json.loads(ctl("operations", "--json"))["operations"][0] == HALF_WAY

    def test_none(self, ctl: Ctl) -> None:
        ctl.script.answers["/operations"] = (200, {"operations": []})
        assert ctl("operations") == "nothing that takes long was asked for\n"

    def test_one_is_followed_to_its_end(self, ctl: Ctl) -> None:
        ctl.script.answers[PLACE] = (200, PAUSING)
        assert ctl("operations", ID) == f"pause\nrearm\nsmol is on the GPU\n{TABLE}"
        assert ctl("operations", ID, "--no-wait") == f"{ID} goes on: pause\n"

    def test_one_that_has_ended_is_not_followed(self, ctl: Ctl) -> None:
        ctl.script.answers[PLACE] = (200, DONE)
        assert json.loads(ctl("operations", ID, "--json")) == DONE
        ctl.script.answers[PLACE] = (200, FAILED)
        assert ctl.fails(1, "operations", ID) == "the device is lost"
        assert ctl.script.followed == 0


class TestTerminal:
    def test_a_bar_for_each_phase_and_then_the_table(self, daemon: Script) -> None:
        daemon.events, daemon.later = [REARMING, HALF_WAY], [DONE]
        with terminal("ctl", "--url", daemon.url, "switch", "smol", environment={"TERM": "xterm"}) as shown:
            assert "3.1 ms" in shown.until("50 %")
            daemon.release.set()
            assert "rearm" not in shown.until("smol is on the GPU\n").rpartition("\x1b[2K")[2]
            assert shown.until("16.1\n").split()[-6:] == TABLE.split()[-6:]
            assert shown.code() == 0

    def test_ctrl_c_ends_the_following_and_not_the_operation(self, daemon: Script) -> None:
        daemon.events, daemon.later = [REARMING], [DONE]
        with terminal("ctl", "--url", daemon.url, "switch", "smol", environment={"TERM": "xterm"}) as shown:
            shown.until("rearm")
            shown.interrupt()
            shown.until(f"tierd: {ID} goes on and is no longer followed; see `tierd ctl operations {ID}`\n")
            assert shown.code() == 1
        assert daemon.asked == [("/models/activate", {"model": "smol"})]
