from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from cli.terminal import terminal
from live import Gated, Live, serve, wait_until
from live_script import ScriptedBackend
from tierd.cli import main
from tierd.settings import ModelSettings

GREEDY = ("--temperature", "0", "--max-tokens", "24")
STRANGE = "URL sent JSON of another shape; is it tierd?"
STATS = re.compile(
    r"prompt \d+ \(cached \d+\), generated 24, first token [\d,]+ ms, [\d,.]+ tokens/s, length\n"
)


def answer(live: Live, *messages: str, model: str = "tiny", system: str = "") -> str:
    """Return what the model says to a conversation, questions and answers in turn, as GREEDY asks it."""
    roles = ("user", "assistant") * len(messages)
    turns = [{"role": role, "content": text} for role, text in zip(roles, messages, strict=False)]
    if system:
        turns.insert(0, {"role": "system", "content": system})
    body = {"model": model, "messages": turns, "temperature": 0, "max_tokens": 24}
    return live.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]


def piped(url: str, text: str | bytes, *options: str) -> tuple[int, str, str]:
    """Chat with stand-ins for pipes; return the exit code, standard output and standard error."""
    raw = text.encode() if isinstance(text, str) else text
    streams = {"stdin": BytesIO(raw), "stdout": BytesIO(), "stderr": BytesIO()}
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in streams.items():
            patch.setattr(sys, name, TextIOWrapper(stream, "utf-8", write_through=True))
        code = main(["chat", "--url", url, *GREEDY, *options])
        return code, streams["stdout"].getvalue().decode(), streams["stderr"].getvalue().decode()


def piped_to_a_process(url: str, text: bytes) -> tuple[int, str, str]:
    run = subprocess.run(
        [sys.executable, "-m", "tierd", "chat", "--url", url, *GREEDY],
        input=text,
        capture_output=True,
        timeout=30,
        check=False,
    )
    return run.returncode, run.stdout.decode(), run.stderr.decode()


class TestPipe:
    def test_lines_are_questions_of_one_conversation(self, live: Live) -> None:
        first = answer(live, "hello")
        second = answer(live, "hello", first, "again")
        assert piped_to_a_process(live.url, b"hello\n\nagain") == (0, f"{first}\n{second}\n", "")

    def test_options_reach_the_model(self, live: Live) -> None:
        wanted = answer(live, "hello", model="other", system="be brief")
        assert piped(live.url, "hello\n", "--model", "other", "--system", "be brief")[1] == f"{wanted}\n"
        code, out, _ = piped(live.url, "hello\n", "--max-tokens", "1")
        assert code == 0
        assert len(out) < len(answer(live, "hello"))

    def test_a_line_may_go_on(self, live: Live) -> None:
        assert piped(live.url, "one\\\ntwo\n")[1] == answer(live, "one\ntwo") + "\n"
        assert piped(live.url, "one\\")[1] == answer(live, "one") + "\n"

    def test_bytes_that_are_no_text_are_replaced(self, live: Live) -> None:
        for pipe in piped, piped_to_a_process:
            assert pipe(live.url, b"a\xffb\n")[1] == answer(live, "a�b") + "\n"

    def test_the_url_may_be_that_of_the_api(self, live: Live) -> None:
        assert piped(f"{live.url}/v1/", "hello\n")[1] == answer(live, "hello") + "\n"

    def test_what_is_not_the_models_goes_to_standard_error(self, live: Live) -> None:
        code, out, err = piped(
            live.url, "/stats\nhello\n/stats\n/stats on\nhello\n/stats off\n/quit\nhello\n"
        )
        assert code == 0
        assert out.count(answer(live, "hello")) == 1
        unasked, *lines = err.splitlines(keepends=True)
        assert unasked == "nothing was asked yet\n"
        assert len(lines) == 2
        assert all(STATS.fullmatch(line) for line in lines)

    def test_reset_system_and_retry(self, live: Live) -> None:
        script = "hello\n/reset\n/system be brief\nhello\n/retry\n/system -\n/reset\nhello\n"
        plain, brief = answer(live, "hello"), answer(live, "hello", system="be brief")
        assert plain != brief
        code, out, err = piped(live.url, script)
        assert (code, out) == (0, "".join(f"{text}\n" for text in (plain, brief, brief, plain)))
        assert err.splitlines() == [
            "the conversation is forgotten",
            "system prompt: be brief",
            "system prompt: none",
            "the conversation is forgotten",
        ]

    def test_models_can_be_changed(self, live: Live) -> None:
        code, out, err = piped(live.url, "/model other\n/model\nhello\n")
        assert (code, out) == (0, answer(live, "hello", model="other") + "\n")
        assert err.splitlines() == ["model: other", "* other", "  tiny"]

    def test_the_default_model_is_marked_once_it_is_known(self, live: Live, gated: Gated) -> None:
        _, _, err = piped(live.url, "/model\nhello\n/model\n")
        unknown = "the daemon's default one answers; its first answer will tell which that is"
        assert err.splitlines() == ["  other", "  tiny", unknown, "  other", "* tiny"]
        assert piped(gated.live.url, "/model\n")[2] == "* tiny\n"

    def test_parameters_can_be_changed(self, live: Live) -> None:
        code, out, err = piped(live.url, "/set max_tokens 1\n/set\nhello\n/set max_tokens -\n/set\n")
        assert code == 0
        assert answer(live, "hello").startswith(out.removesuffix("\n"))
        assert err.splitlines() == ["temperature 0.0, max_tokens 1", "temperature 0.0"]

    def test_a_conversation_is_saved_as_a_request(self, live: Live, tmp_path: Path) -> None:
        file = tmp_path / "saved.json"
        assert piped(live.url, f"hello\n/save {file}\n", "--model", "tiny", "--system", "short")[0] == 0
        said = answer(live, "hello", system="short")
        request = json.loads(file.read_text())
        assert request == {
            "model": "tiny",
            "temperature": 0.0,
            "max_tokens": 24,
            "messages": [
                {"role": "system", "content": "short"},
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": said},
            ],
        }
        assert live.post("/v1/chat/completions", request).status_code == 200

    def test_help_names_every_command(self, live: Live) -> None:
        code, out, err = piped(live.url, "/help\n")
        assert (code, out) == (0, "")
        for name in ("help", "stats", "reset", "retry", "system", "model", "set", "save", "quit"):
            assert f"  /{name}" in err

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("/reste", "there is no command /reste; /help lists them"),
            ("/stats maybe", "/stats takes on, off or nothing, not 'maybe'"),
            ("/retry", "nothing was asked yet"),
            ("/set tempo 1", "/set knows temperature, top_k, "),
            ("/set seed x", "seed takes a whole number, not 'x'; - leaves it to the model"),
            ("/save", "/save takes the name of a file"),
            (
                "/set temperature nan",
                "temperature takes a finite number, not 'nan'; - leaves it to the model",
            ),
            ("/set top_p 1e400", "top_p takes a finite number, not '1e400'"),
            ("/save ~no-such-user/x", "/save takes the name of a file, not '~no-such-user/x'"),
            ("/save a\0b", "/save takes the name of a file, not 'a\\x00b'"),
            ("/save /", "cannot write /: File exists; choose another file"),
            ("/model nobody", "there is no model 'nobody'; models served: other, tiny"),
            ("/set max_tokens 9999\nhello", "shorten the prompt or lower max_tokens"),
        ],
    )
    def test_the_first_error_ends_it_in_one_line(self, live: Live, line: str, message: str) -> None:
        code, out, err = piped(live.url, f"{line}\n/help\n")
        assert code == 1
        assert out.strip() == ""
        assert err.startswith("tierd: ")
        assert message in err
        assert err.count("\n") == 1


class TestFaults:
    """Daemons that are not there, or are none."""

    def fails(self, url: str, *options: str) -> str:
        code, out, err = piped(url, "hello\n", *options)
        assert (code, out) == (1, "")
        (line,) = err.splitlines()
        return line.removeprefix("tierd: ")

    def test_nobody_listens(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert self.fails(url) == f"cannot talk to {url}: Connection refused; is `tierd serve` running?"

    def test_no_such_model(self, live: Live) -> None:
        assert (
            self.fails(live.url, "--model", "a/b?") == "there is no model 'a/b?'; models served: other, tiny"
        )

    def test_no_such_place(self, live: Live) -> None:
        assert self.fails(f"{live.url}/elsewhere") == "GET /elsewhere/v1/models: there is nothing here"

    @pytest.mark.parametrize(
        "url",
        [
            "127.0.0.1:8080",
            "ftp://x",
            "http://",
            "http://x?y",
            "http://h:99999",
            "http://h:abc",
            "http://[::1",
            "http://a..b",
            "http://a b",
            "http://h/ä",
        ],
    )
    def test_no_url(self, url: str) -> None:
        code, _, err = piped(url, "")
        assert code == 2
        assert err == f"tierd: --url must be a URL such as http://127.0.0.1:8080, not {url!r}\n"

    def test_no_number(self) -> None:
        code, _, err = piped("http://127.0.0.1", "", "--temperature", "nan")
        assert code == 2
        assert err == "tierd: Invalid value for '--temperature': takes a finite number, not 'nan'\n"

    def answers(self, *responses: bytes) -> str:
        """Answer one request after the other with given bytes; return the error that chat shows."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=self._answer, args=(listener, responses))
            thread.start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            line = self.fails(url)
            thread.join()
            return line.replace(url, "URL")

    def _answer(self, listener: socket.socket, responses: Sequence[bytes]) -> None:
        for response in responses:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(response)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # a close with bytes unread would reset the connection
                    pass

    def test_something_that_is_no_daemon(self) -> None:
        page = b"HTTP/1.0 200 OK\r\n\r\n<html>"
        assert self.answers(page) == "URL sent what is not JSON; is it tierd?"
        page = b"HTTP/1.0 502 Bad Gateway\r\n\r\n<html>"
        assert self.answers(page) == "URL answered 502 Bad Gateway; is it tierd?"
        assert self.answers(b"").startswith("cannot talk to URL: Remote end closed connection")

    @pytest.mark.parametrize(
        ("body", "problem"),
        [
            (b"[]", "Expected `object`, got `array`"),
            (b'{"data": 3}', "Expected `array`, got `int` - at `$.data`"),
            (b'{"data": [{}]}', "Object missing required field `id` - at `$.data[0]`"),
        ],
    )
    def test_models_of_another_shape(self, body: bytes, problem: str) -> None:
        assert self.answers(b"HTTP/1.0 200 OK\r\n\r\n" + body) == (f"{STRANGE} ({problem})")

    def test_json_too_deep_to_read(self) -> None:
        page = b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 60_000
        assert self.answers(page) == "URL sent what is not JSON; is it tierd?"

    def test_no_model_is_ready(self) -> None:
        assert (
            self.answers(b'HTTP/1.0 200 OK\r\n\r\n{"data": []}')
            == "no model is ready at URL; try again later"
        )

    @pytest.mark.parametrize(
        ("frames", "message"),
        [
            (b'data: {"error": {"message": "the device\\nis lost"}}\n\n', "the device is lost"),
            (b'data: {"error": 1}\n\n', "URL sent an error"),
            (b": keep-alive\n\n", "URL closed the connection in the middle of the answer"),
            (b"data: {\n\n", "URL sent what is not JSON; is it tierd?"),
            (b"data: 3\n\n", f"{STRANGE} (Expected `object`, got `int`)"),
            (b"data: []\n\n", f"{STRANGE} (Expected `object`, got `array`)"),
            (b'data: {"choices": [3]}\n\n', f"{STRANGE} (Expected `object`, got `int` - at `$.choices[0]`)"),
            (
                b'data: {"choices": [{"delta": {"content": 1}}]}\n\n',
                f"{STRANGE} (Expected `str | null`, got `int` - at `$.choices[0].delta.content`)",
            ),
            (
                b'data: {"usage": {"prompt_tokens": "x"}}\n\n',
                f"{STRANGE} (Expected `int | null`, got `str` - at `$.usage.prompt_tokens`)",
            ),
        ],
    )
    def test_a_stream_that_fails(self, frames: bytes, message: str) -> None:
        models = b'HTTP/1.0 200 OK\r\n\r\n{"data": [{"id": "m"}]}'
        assert self.answers(models, b"HTTP/1.0 200 OK\r\n\r\n" + frames) == message


class TestTerminal:
    @pytest.fixture
    def environment(self, tmp_path: Path) -> dict[str, str]:
        return {"XDG_STATE_HOME": str(tmp_path / "state")}

    def test_a_conversation_with_a_person(
        self, live: Live, environment: dict[str, str], tmp_path: Path
    ) -> None:
        first = answer(live, "hello")
        second = answer(live, "hello", first, "again")
        seen = re.sub("[\0-\x08\x0b-\x1f\x7f-\x9f]", "�", first)
        assert seen != first, "the model's answer should hold a control character"
        with terminal("chat", "--url", live.url, *GREEDY, environment=environment) as person:
            greeting = person.until("Ctrl-D leaves\n")
            assert greeting.startswith(f"other or tiny at {live.url}; /help lists the commands")
            person.until("> ")
            person.type("hello\n")
            assert person.until(f"{seen}\n> ").startswith("hello\n")
            person.type("/nothing\n")
            person.until("there is no command /nothing; /help lists them\n> ")
            person.type("/set max_tokens 9999\n")
            person.until("9999\n> ")
            person.type("hello\n")
            person.until("lower max_tokens\n> ")
            person.type("/set max_tokens 24\n")
            person.until("24\n> ")
            person.type("again\n")
            person.until(re.sub("[\0-\x08\x0b-\x1f\x7f-\x9f]", "�", second) + "\n> ")
            person.type("/sta\t\n")
            assert STATS.search(person.until("length\n> ").removesuffix("> "))
            person.type("\x04")
            assert person.code() == 0
        history = tmp_path / "state" / "tierd" / "chat_history"
        assert history.stat().st_mode & 0o777 == 0o600
        assert history.read_text().splitlines()[:2] == ["hello", "/nothing"]

    def test_ctrl_c_stops_the_answer_not_the_program(
        self, gated: Gated, live: Live, environment: dict[str, str]
    ) -> None:
        whole = answer(live, "hello")
        with terminal("chat", "--url", gated.live.url, *GREEDY, environment=environment) as person:
            person.until("> ")
            person.type("hello\n")
            person.until("hello\n")
            gated.gate.step(8)
            person.until(whole[:2])
            person.interrupt()
            person.until("stopped; Ctrl-D leaves\n> ")
            gated.gate.open()
            wait_until(lambda: gated.live.engine.snapshot.models["tiny"].running == 0)
            person.type("/stats\n")
            assert "generated ?" in person.until("broken off\n> ")
            person.type("/reset\n")
            person.until("forgotten\n> ")
            person.type("hello\n")
            person.until(whole[-4:] + "\n> ")
            person.interrupt()
            person.until("\n> ")
            person.type("/quit\n")
            assert person.code() == 0

    def test_a_retry_without_an_answer_keeps_the_last_one(
        self, live: Live, gated: Gated, environment: dict[str, str], tmp_path: Path
    ) -> None:
        said, file = answer(live, "hello"), tmp_path / "saved.json"
        with terminal("chat", "--url", gated.live.url, *GREEDY, environment=environment) as person:
            person.until("> ")
            person.type("hello\n")
            person.until("hello\n")
            gated.gate.step(24)
            person.until("\n> ")
            person.type("/set max_tokens 9999\n")
            person.until("9999\n> ")
            person.type("/retry\n")
            person.until("lower max_tokens\n> ")
            person.type("/set max_tokens 24\n")
            person.until("24\n> ")
            person.type("/retry\n")
            person.until("/retry\n")
            wait_until(lambda: gated.live.engine.snapshot.models["tiny"].running == 1)
            person.interrupt()
            person.until("stopped; Ctrl-D leaves\n> ")
            person.type(f"/save {file}\n")
            person.until("saved to ")
            person.until("\n> ")
        assert json.loads(file.read_text())["messages"] == [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": said},
        ]

    def test_lines_of_an_earlier_conversation_come_back(
        self, live: Live, environment: dict[str, str], tmp_path: Path
    ) -> None:
        history = tmp_path / "state" / "tierd" / "chat_history"
        history.parent.mkdir(parents=True)
        history.write_text("/set top_k 5\n")
        with terminal("chat", "--url", live.url, environment=environment) as person:
            person.until("> ")
            person.type("\x10\n")
            person.until("/set top_k 5\n> ")
            person.type("/set\n")
            person.until("/set\ntop_k 5\n> ")
            person.type("\x04")
            assert person.code() == 0

    def test_thoughts_are_dim_and_not_piped(
        self, model: ModelSettings, environment: dict[str, str], tmp_path: Path
    ) -> None:
        template = tmp_path / "thinks.jinja"
        template.write_text("{{ messages[-1].content }}{# <think> </think> #}:")
        backend = ScriptedBackend()
        backend.says = "<think>hm\x07</think>So."
        colours = {**environment, "TERM": "xterm-256color"}
        with serve([replace(model, chat_template=template)], backend=backend) as live:
            assert piped(live.url, "hello\n") == (0, "So.\n", "")
            with terminal("chat", "--url", live.url, environment=colours) as person:
                person.until("\033[1;36m> \033[0m")
                person.type("hello\n")
                person.until("\033[2mh\033[0m\033[2mm\033[0m\033[2m�\033[0m\n\nSo.\n")
                person.type("/save " + str(tmp_path / "saved.json") + "\n")
                person.until("saved to")
                person.type("/quit\n")
                assert person.code() == 0
        saved = json.loads((tmp_path / "saved.json").read_text())
        assert saved["messages"][-1] == {"role": "assistant", "content": "So."}

    def test_a_terminal_with_colours_gets_some(self, live: Live, environment: dict[str, str]) -> None:
        colours = {**environment, "TERM": "xterm-256color"}
        with terminal("chat", "--url", live.url, environment=colours) as person:
            person.until("\033[1;36m> \033[0m")
            person.type("/nothing\n")
            person.until("\033[31mthere is no command /nothing; /help lists them\033[0m")
            person.until("\033[1;36m> \033[0m")
            person.type("/quit\n")
            assert person.code() == 0
