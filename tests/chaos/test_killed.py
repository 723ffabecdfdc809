"""A daemon that is killed in the middle of anything: the next one serves at once, as if nothing had been."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from hostile.daemon import daemon, start
from live import wait_until
from tiny import write_llama

PATIENCE_S = 60.0
MODELS = ("one", "two")
# Of these two models 8 MiB hold one; both are quick to leave, and are written down all the time.
SETTINGS = """
drain_s = 0.0
[gpu]
allow_software = true
vram_limit_mb = 8
require = "resident"
[switch]
min_hold_s = 0.0
max_wait_s = 0.0
[kv]
memory_mb = 64
[state]
dir = "state"
interval_s = 0.2
""" + "".join(
    f'[[models]]\nid = "{id}"\npath = "{id}.gguf"\ncontext = 4096\nctx_strict = true\nstreams = 2\n'
    for id in MODELS
)
Note = Callable[[str, object], None]
Answers = dict[tuple[str, tuple[int, ...]], str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One with the models, and with caches and state of its own."""
    folder = tmp_path_factory.mktemp("killed")
    for seed, id in enumerate(MODELS):
        write_llama(folder / f"{id}.gguf", context=4096, ff=96, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def answers(folder: Path) -> Answers:
    """What is said to some prompts, half of which go on with another and its answer, when nothing happens."""
    with daemon(folder, SETTINGS) as served, served.client(PATIENCE_S) as client:
        said: Answers = {}
        for model in MODELS:
            for n in range(2):
                prompt = [n, *Random(n).choices(range(3, 300), k=20)]
                said[model, tuple(prompt)] = text = ask(client, model, prompt)
                content = {"model": model, "content": text}
                told = client.post("/tokenize", json=content).json()["tokens"]
                further = (*prompt, *told, 5, 7)
                said[model, further] = ask(client, model, further)
    return said


def ask(client: httpx.Client, model: str, prompt: Any, tokens: int = 16) -> str:
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@contextmanager
def doomed(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start a daemon, which is killed in the end; yield it and its admin socket."""
    with TemporaryDirectory() as place, (folder / "doomed.log").open("w") as errors:
        socket = Path(place, "admin.sock")
        with start(folder / "doomed.toml", socket, SETTINGS, errors) as process:
            try:
                yield process, socket
            finally:
                process.kill()


def stop_in_a_switch(process: subprocess.Popen[str], admin: httpx.Client, log: Path, random: Random) -> str:
    """Freeze a daemon while a switch is under way; return the phase seen a moment before."""
    for _ in range(200):
        while (switch := admin.get("/status").json()["switch"]) is None:
            time.sleep(0.002)
        time.sleep(random.random() * 0.05)
        process.send_signal(signal.SIGSTOP)
        *_, last = re.findall(r"switch: (\S+ leaves|done|failed|called off)", log.read_text())
        if last.endswith("leaves"):
            return str(switch["phase"])
        process.send_signal(signal.SIGCONT)
    raise AssertionError("no switch took long enough")


def serves(folder: Path, answers: Answers) -> None:
    """Check that a daemon serves now as if nothing had been, and leaves nothing half done behind."""
    with daemon(folder, SETTINGS) as served, served.client(PATIENCE_S) as client:
        for (model, prompt), text in answers.items():
            assert ask(client, model, prompt) == text
        assert "state.dir: ignored" not in served.log.read_text()
    left = [path.name for kept in ("cache", "state") for path in (folder / kept).rglob("*") if path.is_file()]
    assert {Path(name).suffix or name for name in left} == {".image", ".pipelines", ".rows", "lock"}, left
    assert len([name for name in left if name.endswith(".image")]) == len(MODELS)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20))])
def test_in_the_middle_of_a_switch(seed: int, folder: Path, answers: Answers, record_property: Note) -> None:
    random = Random(seed)
    with doomed(folder) as (process, socket):
        assert process.stdout is not None
        ready = re.search(r"ready at (http://\S+)", process.stdout.readline())
        assert ready is not None, (folder / "doomed.log").read_text()
        stop = threading.Event()

        def talk(model: str) -> None:
            with httpx.Client(base_url=ready[1], timeout=PATIENCE_S, trust_env=False) as client:
                while not stop.is_set():
                    try:
                        ask(client, model, (1, 2, 3), 40)
                    except httpx.TransportError:
                        assert stop.is_set()

        threads = [threading.Thread(target=talk, args=(model,)) for model in MODELS for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(random.random())
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://admin") as admin:
            phase = stop_in_a_switch(process, admin, folder / "doomed.log", random)
        stop.set()
        process.kill()
        for thread in threads:
            thread.join()
    record_property("seen in phase", phase)
    serves(folder, answers)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))])
def test_while_it_starts_for_the_first_time(
    seed: int, tmp_path: Path, folder: Path, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images and pipelines are made then."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for model in MODELS:
        (tmp_path / f"{model}.gguf").hardlink_to(folder / f"{model}.gguf")
    with doomed(tmp_path) as (process, _):
        made = tmp_path / "cache" / "tierd"
        wait_until(lambda: any(made.rglob("*.draft")) or any(made.rglob("*.image")))
        time.sleep(Random(seed).random() * 0.5)
        assert process.poll() is None
    serves(tmp_path, answers)
