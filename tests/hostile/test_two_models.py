"""Two models served at once, eight clients on each: all get what a client alone gets, and nobody waits."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hostile.daemon import Daemon, daemon
from tiny import write_gemma3, write_llama

CLIENTS = 8
MODELS = ("llama", "gemma")
Job = tuple[str, int]


@dataclass
class Story:
    """What a client got: the text, and when its pieces came."""

    text: str = ""
    times: list[float] = field(default_factory=list)


def tell(served: Daemon, job: Job, tokens: int, barrier: threading.Barrier | None = None) -> Story:
    """Stream one answer. Even clients are greedy, odd ones draw with a seed of their own."""
    model, client = job
    request = {
        "model": model,
        "prompt": "the one " * (1 + 3 * client),
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0 if client % 2 == 0 else 0.9,
        "seed": client,
    }
    story = Story()
    with served.client(timeout=300) as http:
        if barrier is not None:
            barrier.wait(60)
        with http.stream("POST", "/v1/completions", json=request) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    story.text += json.loads(line[6:])["choices"][0]["text"]
                    story.times.append(time.monotonic())
            assert line == "" or line == "data: [DONE]"
    return story


def check_both(served: Daemon, tokens: int) -> None:
    jobs = [(model, client) for client in range(CLIENTS) for model in MODELS]
    alone = {job: tell(served, job, tokens).text for job in jobs}
    assert len(set(alone.values())) > CLIENTS
    assert served.flush() > 0  # so that prompts are fed together as well
    barrier = threading.Barrier(len(jobs))
    with ThreadPoolExecutor(len(jobs)) as clients:
        together = dict(
            zip(jobs, clients.map(lambda job: tell(served, job, tokens, barrier), jobs), strict=True)
        )
    assert {job: story.text for job, story in together.items()} == alone
    check_progress(together)


def check_progress(stories: dict[Job, Story]) -> None:
    """While both models have streams, pieces of each keep coming."""
    times = {
        model: sorted(at for job, story in stories.items() if job[0] == model for at in story.times)
        for model in MODELS
    }
    start = max(each[0] for each in times.values())
    end = min(each[-1] for each in times.values())
    for each in times.values():
        shared = [at for at in each if start <= at <= end]
        assert len(shared) > len(each) / 4
        gaps = [after - before for before, after in itertools.pairwise(shared)]
        assert max(gaps) < max(1.0, (end - start) / 2)


@pytest.fixture(scope="module")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("pair")
    write_llama(folder / "llama.gguf", context=1024, n_embd=128, ff=256, layers=4)
    write_gemma3(folder / "gemma.gguf", context=1024)
    with daemon(folder, settings(folder / "llama.gguf", folder / "gemma.gguf")) as running:
        yield running


def settings(llama: Path, gemma: Path) -> str:
    return f"""
        [engine]
        chunk_rows = 32
        [kv]
        memory_mb = 600
        [[models]]
        id = "llama"
        path = "{llama}"
        context = 1024
        [[models]]
        id = "gemma"
        path = "{gemma}"
        context = 1024
    """


def test_eight_clients_on_each_of_two_models(tiny_pair: Daemon) -> None:
    check_both(tiny_pair, tokens=60)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_eight_clients_on_each_of_two_real_models(
    tmp_path: Path, smollm2_path: Path, gemma3_path: Path
) -> None:
    with daemon(tmp_path, settings(smollm2_path.resolve(), gemma3_path.resolve())) as served:
        check_both(served, tokens=24)
