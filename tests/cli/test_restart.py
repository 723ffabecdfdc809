"""`tierd serve` that is ended, or killed, and started again: conversations go on as if it had never been."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import httpx
import pytest

from live import LONG_WAIT_S, wait_until
from tierd.chat.tokenizer import build_tokenizer
from tierd.kv.openings import pack
from tierd.kv.row_files import read_header
from tierd.models import GGUFFile
from tiny import write_llama

TALKS, TURNS, ANSWER, QUESTION = 20, 3, 6, 4
BEGINNING = 41  # tokens of a first question
GPU = "mode = 'resident'\nallow_software = true"
CPU = "mode = 'off'"


@dataclass
class Talk:
    """A conversation. tokens: all so far. known: of each turn, how many tokens were found."""

    tokens: list[int]
    known: list[int] = field(default_factory=list)

    @classmethod
    def begun(cls, index: int) -> Talk:
        """Return one that differs from others in its second half."""
        return cls([*range(3, 23), index, *Random(index).choices(range(3, 250), k=20)])


class House:
    """A folder with a model, settings and what tierd keeps there."""

    def __init__(self, folder: Path, admin: Path, gpu: str, state: str = "") -> None:
        """admin: the socket of its admin API."""
        self.folder = folder
        self.admin = admin
        self.files = folder / "state" / "bank"
        self.log = folder / "log"
        model = write_llama(folder / "tiny.gguf", context=512)
        with GGUFFile.open(model) as file:
            tokenizer = build_tokenizer(file)
        texts = (tokenizer.token_bytes(id) or tokenizer.token_text(id).encode() for id in range(301))
        self._ids = {spelled(text): id for id, text in enumerate(texts)}
        for name, socket in (("one", str(admin)), ("other", "off")):
            (folder / f"{name}.toml").write_text(
                f"server.listen = '127.0.0.1:0'\nadmin.socket = '{socket}'\nengine.threads = 1\n"
                f"[gpu]\n{gpu}\n[state]\ndir = 'state'\n{state}\n"
                "[[models]]\nid = 'tiny'\npath = 'tiny.gguf'\ncontext = 512\nstreams = 20\n"
            )

    @property
    def kept(self) -> set[bytes]:
        """The packed tokens of what is kept now."""
        return {read_header(path).tokens for path in self.files.glob("*.rows")}

    @contextmanager
    def serve(self) -> Iterator[Daemon]:
        with (
            self.log.open("a") as log,
            subprocess.Popen(self._command("one"), stdout=-1, stderr=log, text=True) as process,
        ):
            try:
                assert process.stdout is not None
                ready = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
                assert ready is not None, self.log.read_text()
                with httpx.Client(base_url=ready[0], timeout=LONG_WAIT_S, trust_env=False) as http:
                    yield Daemon(self, process, http)
            finally:
                process.kill()

    def start_beside(self) -> tuple[int, str]:
        """Start another while one serves; return its exit code and what it says."""
        second = subprocess.run(
            self._command("other"), capture_output=True, text=True, timeout=LONG_WAIT_S, check=False
        )
        return second.returncode, second.stderr

    def _command(self, config: str) -> list[str]:
        return [sys.executable, "-m", "tierd", "serve", "--config", str(self.folder / f"{config}.toml")]

    def ids(self, spellings: list[str]) -> list[int]:
        return [self._ids[spelling] for spelling in spellings]


def spelled(text: bytes) -> str:
    """Return a token as completions spell it."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)


@dataclass
class Daemon:
    house: House
    process: subprocess.Popen[str]
    http: httpx.Client

    def turn(self, talk: Talk) -> bool:
        """Have a conversation's next turn; False when the daemon ends. The next question is asked then."""
        asked = {
            "prompt": talk.tokens, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True, "logprobs": 0
        }  # fmt: skip
        try:
            response = self.http.post("/v1/completions", json=asked)
        except httpx.TransportError:
            return False
        if response.status_code == 503:
            return False
        answer = response.json()
        usage = answer["usage"]
        assert usage["completion_tokens"] == ANSWER
        talk.known.append(usage["prompt_tokens_details"]["cached_tokens"])
        said = self.house.ids(answer["choices"][0]["logprobs"]["tokens"])
        talk.tokens += [*said, *Random(len(talk.tokens)).choices(range(3, 250), k=QUESTION)]
        return True

    def have(self, done: str) -> None:
        """Have something done by the admin API, and wait for its end."""
        door = httpx.HTTPTransport(uds=str(self.house.admin))
        with httpx.Client(transport=door, timeout=LONG_WAIT_S) as admin:
            answer = admin.post(f"http://admin/{done}", params={"wait": "true"})
        assert answer.status_code == 200, answer.text

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(LONG_WAIT_S) == 0


def go_on(daemon: Daemon, talk: Talk, turns: int, end_after: int | None) -> None:
    """Have the turns of a conversation that are left, as far as the daemon lets it."""
    while len(talk.known) < turns and daemon.turn(talk):
        if len(talk.known) == end_after:
            daemon.process.send_signal(signal.SIGTERM)


def talk_all(daemon: Daemon, talks: list[Talk], turns: int = TURNS, end_after: int | None = None) -> None:
    """Have all conversations side by side. end_after: when the tenth has so many, the daemon is to end."""
    with ThreadPoolExecutor(TALKS) as threads:
        going = [
            threads.submit(go_on, daemon, talk, turns, end_after if index == 9 else None)
            for index, talk in enumerate(talks)
        ]
    for each in going:
        each.result()


def left_alone(daemon: Daemon, turns: int = TURNS) -> list[Talk]:
    """Return the same conversations as they go when nothing is known of before and nothing happens."""
    daemon.have("flush")
    assert daemon.house.kept == set()
    daemon.have("resume")
    talks = [Talk.begun(index) for index in range(TALKS)]
    talk_all(daemon, talks, turns)
    return talks


def kill_later(daemon: Daemon, seconds: float) -> None:
    """Kill a daemon so long after something has been kept."""
    wait_until(lambda: daemon.house.kept != set())
    time.sleep(seconds)
    daemon.process.kill()


@pytest.fixture
def socket() -> Iterator[Path]:
    """A path that is short enough for a socket."""
    with TemporaryDirectory() as place:
        yield Path(place, "admin.sock")


@pytest.mark.parametrize("gpu", [CPU, GPU], ids=["cpu", "gpu"])
def test_twenty_conversations_go_on_after_a_restart_in_their_midst(
    tmp_path: Path, socket: Path, gpu: str
) -> None:
    """What a drain has answered as kept, or a flush as gone, is so on the disk: whatever comes then."""
    house = House(tmp_path, socket, gpu)
    talks = [Talk.begun(index) for index in range(TALKS)]
    with house.serve() as daemon:
        talk_all(daemon, talks, end_after=1)
        assert daemon.process.wait(LONG_WAIT_S) == 0
    begun = sum(len(talk.known) > 0 for talk in talks)
    assert 0 < begun < sum(len(talk.known) for talk in talks) + TALKS < TALKS * TURNS
    assert len(house.kept) >= begun
    with house.serve() as daemon:
        talk_all(daemon, talks)
        if gpu == CPU:
            said = f"tierd: state.dir: another tierd uses {house.files}; choose another one\n"
            assert house.start_beside() == (2, said)
        daemon.have("drain")
        assert house.kept >= {pack(talk.tokens[: -QUESTION - 1]) for talk in talks}
        others = left_alone(daemon)
        daemon.end()
    for talk, other in zip(talks, others, strict=True):
        assert talk.tokens == other.tokens
        # What a first turn finds depends on which of its fellows came before it.
        assert talk.known[1:] == other.known[1:] == [BEGINNING + 10 * turn - 5 for turn in range(1, TURNS)]
    assert "WARNING" not in house.log.read_text()


@pytest.mark.parametrize(("kills", "turns"), [(1, 8), pytest.param(25, 20, marks=pytest.mark.long)])
def test_killed_while_it_writes_it_starts_again_and_serves(
    tmp_path: Path, socket: Path, kills: int, turns: int
) -> None:
    house = House(tmp_path, socket, CPU, "interval_s = 0.1")
    chance, talks = Random(kills), [Talk.begun(index) for index in range(TALKS)]
    for _ in range(kills):
        with house.serve() as daemon:
            killer = threading.Thread(target=kill_later, args=(daemon, chance.uniform(0.2, 1.0)))
            killer.start()
            talk_all(daemon, talks, turns)
            killer.join()
    assert house.kept
    with house.serve() as daemon:
        assert not list(house.files.glob("*.draft"))
        talk_all(daemon, talks, turns)
        others = left_alone(daemon, turns)
        daemon.end()
    assert [talk.tokens for talk in talks] == [talk.tokens for talk in others]
    assert "WARNING" not in house.log.read_text()
