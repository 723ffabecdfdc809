"""`tierd serve` for several API keys: what one has asked shows in no other's answers, nor after a restart."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from live import LONG_WAIT_S
from tierd.http.keys import line_of
from tierd.kv.row_files import read_header
from tiny import write_llama

PROMPT = [*range(3, 63)]
GPU = "mode = 'resident'\nallow_software = true"
CPU = "mode = 'off'"
CHAT = {"messages": [{"role": "user", "content": "a b c d e f g h " * 6}], "max_tokens": 2}


class House:
    """A folder with a model, settings, the keys of alice and bob, and what tierd keeps there."""

    def __init__(self, folder: Path, gpu: str, *, share_prefix: bool) -> None:
        self.folder = folder
        write_llama(folder / "tiny.gguf", context=512)
        keys = folder / "keys"
        keys.write_text("".join(line_of(name, f"of-{name}") + "\n" for name in ("alice", "bob")))
        keys.chmod(0o600)
        (folder / "tierd.toml").write_text(
            "admin.socket = 'off'\nengine.threads = 1\nstate.dir = 'state'\n"
            "[server]\nlisten = '127.0.0.1:0'\napi_keys_file = 'keys'\n"
            f"[kv]\nshare_prefix = {str(share_prefix).lower()}\n[gpu]\n{gpu}\n"
            "[[models]]\nid = 'tiny'\npath = 'tiny.gguf'\ncontext = 512\nstreams = 4\n"
        )

    @contextmanager
    def serve(self) -> Iterator[httpx.Client]:
        command = [sys.executable, "-m", "tierd", "serve", "--config", str(self.folder / "tierd.toml")]
        with (
            (self.folder / "log").open("a") as log,
            subprocess.Popen(command, stdout=-1, stderr=log, text=True) as process,
        ):
            try:
                assert process.stdout is not None
                ready = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
                assert ready is not None, (self.folder / "log").read_text()
                with httpx.Client(base_url=ready[0], timeout=LONG_WAIT_S, trust_env=False) as http:
                    yield http
                process.send_signal(signal.SIGTERM)
                assert process.wait(LONG_WAIT_S) == 0
            finally:
                process.kill()


def cached(http: httpx.Client, name: str) -> list[int]:
    """Ask as the owner of a key, by every API; return how much of each prompt was known."""
    shown = {"x-api-key": f"of-{name}"}

    def usage(path: str, body: dict[str, object]) -> dict[str, int | dict[str, int]]:
        answer = http.post(path, json={"model": "tiny", "temperature": 0} | body, headers=shown)
        assert answer.status_code == 200, answer.text
        found: dict[str, int | dict[str, int]] = answer.json()["usage"]
        return found

    told = (
        usage("/v1/completions", {"prompt": PROMPT, "max_tokens": 2})["prompt_tokens_details"],
        usage("/v1/chat/completions", CHAT)["prompt_tokens_details"],
        usage("/v1/responses", {"input": "1 2 3 " * 9, "max_output_tokens": 2})["input_tokens_details"],
    )
    last = usage("/v1/messages", {**CHAT, "system": "x y z " * 9})["cache_read_input_tokens"]
    assert isinstance(last, int)
    return [*(each["cached_tokens"] for each in told if isinstance(each, dict)), last]


def told(http: httpx.Client, name: str, id: str) -> list[tuple[int, str]]:
    """Ask for a response by all that takes its id; return the answers, with "ID" in its place."""
    place = f"/v1/responses/{id}"
    item = {"type": "item_reference", "id": id.replace("resp_", "msg_") + "0000"}
    calls: tuple[tuple[str, str, object], ...] = (
        ("GET", place, None),
        ("GET", f"{place}?stream=true", None),
        ("GET", f"{place}/input_items", None),
        ("POST", f"{place}/cancel", None),
        ("POST", "/v1/responses", {"model": "tiny", "input": "a", "previous_response_id": id}),
        ("POST", "/v1/responses", {"model": "tiny", "input": [item]}),
        ("DELETE", place, None),
    )
    answers = [
        http.request(method, path, json=body, headers={"x-api-key": f"of-{name}"})
        for method, path, body in calls
    ]
    return [(each.status_code, each.text.replace(id.removeprefix("resp_"), "ID")) for each in answers]


def test_what_is_another_keys_looks_like_what_never_was(tmp_path: Path) -> None:
    with House(tmp_path, CPU, share_prefix=False).serve() as http:
        runs, ended = (
            http.post(
                "/v1/responses",
                json=body | {"model": "tiny", "input": "a"},
                headers={"x-api-key": "of-alice"},
            )
            for body in ({"background": True, "ignore_eos": True}, {"max_output_tokens": 2})
        )
        never = told(http, "bob", f"resp_{'0' * 32}")
        assert {status for status, _ in never} == {400, 404}
        for made in (runs, ended):
            assert told(http, "bob", made.json()["id"]) == never
            assert told(http, "alice", made.json()["id"])[0][0] == 200


@pytest.mark.parametrize("gpu", [CPU, GPU], ids=["cpu", "gpu"])
def test_keys_that_share_nothing_find_what_is_their_own(tmp_path: Path, gpu: str) -> None:
    house = House(tmp_path, gpu, share_prefix=False)
    with house.serve() as http:
        first = cached(http, "alice")
        again = cached(http, "alice")
        assert again[0] == len(PROMPT) - 1
        assert all(more > less for more, less in zip(again, first, strict=True))
    owners = {read_header(path).owner for path in (tmp_path / "state" / "bank").glob("*.rows")}
    assert owners == {"alice"}
    with house.serve() as http:
        assert cached(http, "bob") == first
        assert cached(http, "alice") == cached(http, "bob") == again


def test_keys_that_share_find_what_is_everybodys(tmp_path: Path) -> None:
    with House(tmp_path, CPU, share_prefix=True).serve() as http:
        cached(http, "alice")
        assert cached(http, "bob") == cached(http, "alice")
        assert cached(http, "bob")[0] == len(PROMPT) - 1
