from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from tiny import write_llama


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `tierd serve`; yield its process and the address on the line that says it is ready."""
    with subprocess.Popen(
        [sys.executable, "-m", "tierd", "serve", "--listen", "127.0.0.1:0", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            ready = re.fullmatch(
                r"tierd \S+ is ready at (http://\S+) and serves .+\n", process.stdout.readline()
            )
            assert ready is not None
            yield process, ready[1]
        finally:
            process.kill()


def test_the_real_model_knows_the_capital_of_france(smollm2_path: Path) -> None:
    with serving("--model", str(smollm2_path)) as (_, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        answer = client.chat.completions.create(
            model="SmolLM2-135M-Instruct.Q4_1",
            messages=[{"role": "user", "content": "Name the capital of France."}],
            temperature=0,
        )
    assert answer.choices[0].finish_reason == "stop"
    assert "Paris" in (answer.choices[0].message.content or "")


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(tmp_path: Path, name: signal.Signals) -> None:
    model = write_llama(tmp_path / "tiny.gguf")
    with serving("--model", str(model)) as (process, _):
        process.send_signal(name)
        assert process.wait(timeout=20) == 0


def test_settings_file_and_flags_are_served_together(tmp_path: Path) -> None:
    write_llama(tmp_path / "one.gguf")
    two = write_llama(tmp_path / "two.gguf", seed=2)
    config = tmp_path / "tierd.toml"
    config.write_text("[[models]]\nid = 'first'\npath = 'one.gguf'\n")
    with (
        serving("--config", str(config), "--model", str(two)) as (_, url),
        urllib.request.urlopen(f"{url}/v1/models") as response,
    ):
        assert [model["id"] for model in json.load(response)["data"]] == ["first", "two"]


def processor_ticks(process: int) -> int:
    """Return the clock ticks that a process and its descendants have used so far."""
    used = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{process}/task").glob("*/children")
    return sum(map(int, used[11:13])) + sum(
        processor_ticks(int(child)) for path in children for child in path.read_text().split()
    )


def test_an_idle_daemon_uses_no_processor(tmp_path: Path) -> None:
    """Less than one clock tick a second, by all its threads and processes, once it has served a request."""
    seconds = 3
    with serving("--model", str(write_llama(tmp_path / "tiny.gguf"))) as (process, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        client.completions.create(model="tiny", prompt="the of and", max_tokens=8)
        time.sleep(0.5)  # to come to rest
        before = processor_ticks(process.pid)
        assert before > os.sysconf("SC_CLK_TCK") / 10  # its start is counted
        time.sleep(seconds)
        assert processor_ticks(process.pid) - before < seconds
