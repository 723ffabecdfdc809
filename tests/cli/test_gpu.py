"""`tierd serve` and `tierd models` with a device: llvmpipe, which the settings let count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gpu import WATCHED, memory_is_hidden
from live import serve
from tierd.backends.host import HostBackend
from tierd.cli import main
from tierd.cli.client import at_socket
from tierd.core import PassReason
from tierd.settings import ModelSettings
from tiny import write_llama

WAIT_S = 60
PROMPT = {"prompt": "the and of", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu")
    write_llama(folder / "tiny.gguf", head_size=32, ff=96, context=1024)
    return folder


def settings(folder: Path, name: str, gpu: str = "", model: str = "") -> Path:
    file = folder / f"{name}.toml"
    file.write_text(
        f"server = {{listen = '127.0.0.1:0', drain_s = 0.5}}\nadmin.socket = '{folder / name}.sock'\n"
        f"engine.chunk_rows = 16\n[gpu]\nallow_software = true\n{gpu}\n"
        f"[[models]]\nid = 'tiny'\npath = 'tiny.gguf'\nstreams = 4\n{model}\n"
    )
    return file


@dataclass(frozen=True)
class Daemon:
    process: subprocess.Popen[str]
    http: httpx.Client
    socket: Path

    def complete(self, **changes: object) -> str:
        answer = self.http.post("/v1/completions", json={**PROMPT, **changes})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])


@contextmanager
def serving(config: Path, **environment: str) -> Iterator[Daemon]:
    """Run a daemon to its end in good order, in which the validation layer has found nothing."""
    command = [sys.executable, "-m", "tierd", "serve", "--config", str(config)]
    variables = os.environ | WATCHED | environment
    with (
        config.with_suffix(".log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=variables) as process,
    ):
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[5]
            with httpx.Client(base_url=url, timeout=WAIT_S, trust_env=False) as client:
                yield Daemon(process, client, config.with_suffix(".sock"))
            process.terminate()
            assert process.wait(WAIT_S) == 0
            assert process.stdout.read() == ""
        finally:
            process.kill()


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[Daemon]:
    with serving(settings(folder, "served")) as daemon:
        yield daemon


def metric(daemon: Daemon, name: str) -> float:
    (line,) = (line for line in daemon.http.get("/metrics").text.splitlines() if line.startswith(name + " "))
    return float(line.split()[-1])


def rows_read(daemon: Daemon) -> float:
    """Return how many rows of logits were read back; the metric is there from the first step on."""
    daemon.complete(max_tokens=1)
    return metric(daemon, 'tierd_gpu_logit_rows_read_total{model="tiny"}')


def test_metrics_tell_where_it_runs_and_what_it_takes(daemon: Daemon) -> None:
    assert metric(daemon, 'tierd_model_outcome{model="tiny",outcome="gpu:resident"}') == 1
    used = metric(daemon, 'tierd_gpu_memory_bytes{kind="used"}')
    assert 0 < used < metric(daemon, 'tierd_gpu_memory_bytes{kind="budget"}')


def test_the_log_tells_that_the_devices_memory_is_hidden(daemon: Daemon) -> None:
    log = daemon.socket.with_suffix(".log").read_text()
    line = "the device's memory is hidden from the host: TIERD_HIDE_HOST_VISIBLE is set"
    assert (line in log) == memory_is_hidden()


def test_the_admin_api_names_the_device(daemon: Daemon) -> None:
    client = at_socket(daemon.socket)
    (status,) = client.get("/status")["models"]
    (slot,) = client.get("/slots")["slots"]
    for answer in (status, slot):
        assert (answer["outcome"], answer["decline"]) == ("gpu:resident", "")
        assert answer["device"]
    assert slot["context"] == 1024
    assert status["pages"]["total"] == 4


def test_a_greedy_text_is_the_same_again_beside_others_and_from_the_prefix_cache(daemon: Daemon) -> None:
    text = daemon.complete()
    assert text
    others = [f"{letter} is not the one" for letter in "abc"]
    with ThreadPoolExecutor(4) as pool:
        busy = [pool.submit(daemon.complete, prompt=prompt, temperature=1, seed=1) for prompt in others]
        assert daemon.complete() == text
        assert all(each.result() for each in busy)
    assert daemon.complete() == text
    assert metric(daemon, 'tierd_prefix_cache_hits_total{model="tiny"}') > 0


def test_log_probabilities_are_the_hosts_and_cost_no_row_of_logits(daemon: Daemon, folder: Path) -> None:
    body = {**PROMPT, "logprobs": 20}
    backend = HostBackend(1)
    with serve([ModelSettings(id="tiny", path=folder / "tiny.gguf", default=True)], backend=backend) as host:
        expected = host.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    backend.close()
    before = rows_read(daemon)
    found = daemon.http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    assert rows_read(daemon) == before
    assert found["tokens"] == expected["tokens"]
    assert found["token_logprobs"] == pytest.approx(expected["token_logprobs"], abs=0.01)
    for top, other in zip(found["top_logprobs"], expected["top_logprobs"], strict=True):
        shared = top.keys() & other.keys()
        assert len(shared) >= 18  # the least likely of them may be others
        assert [top[text] for text in shared] == pytest.approx([other[text] for text in shared], abs=0.01)
    assert len(found["tokens"]) == 24


@pytest.mark.parametrize(
    "way",
    [
        {"temperature": 0},
        {"temperature": 0, "frequency_penalty": 1.5, "repeat_penalty": 1.3},
        {"temperature": 100, "n": 3, "seed": 5},
        {"temperature": 9, "n": 2, "seed": 6, "presence_penalty": 0.5},
    ],
    ids=["greedy", "penalised", "random", "both"],
)
def test_only_what_is_allowed_comes(daemon: Daemon, way: dict[str, object]) -> None:
    """Also where the draw falls outside the 64 best, which takes more ids than that."""
    before = rows_read(daemon)
    for count in (6, 90):
        allowed = list(range(5, 5 + count))  # of which each alone is text
        texts = {daemon.http.post("/detokenize", json={"tokens": [id]}).json()["content"] for id in allowed}
        body = {**PROMPT, **way, "allowed_token_ids": allowed, "logprobs": 0}
        choices = daemon.http.post("/v1/completions", json=body).json()["choices"]
        tokens = [choice["logprobs"]["tokens"] for choice in choices]
        assert [len(each) for each in tokens] == [24] * int(str(way.get("n", 1)))
        assert {text for each in tokens for text in each} <= texts
        read = rows_read(daemon) - before
        assert (read > 0) == (count == 90 and way["temperature"] != 0)


def told(daemon: Daemon, capsys: pytest.CaptureFixture[str], view: str) -> str:
    """Return what `tierd ctl` prints."""
    assert main(["ctl", "--socket", str(daemon.socket), view]) == 0
    return capsys.readouterr().out


def passes(daemon: Daemon) -> dict[str, float]:
    """Return the passes by reason, as the metric has them; those that there are."""
    found = (line.split() for line in daemon.http.get("/metrics").text.splitlines())
    counts = {
        words[0]: float(words[-1]) for words in found if words[0].startswith("tierd_gpu_cpu_passes_total")
    }
    assert len(counts) == len(PassReason)
    return {name.split('"')[3]: count for name, count in counts.items() if count}


def test_streams_of_the_device_leave_no_passes(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.http.post("/v1/completions", json={**PROMPT, "n": 4}).raise_for_status()
    assert passes(daemon) == {}
    assert told(daemon, capsys, "passes") == "nothing that was meant for a GPU has run on the CPU\n"
    assert told(daemon, capsys, "sessions") == "no stream is running\n"
    rows = [line.split() for line in told(daemon, capsys, "regions").splitlines()[1:]]
    assert [row[:2] for row in rows] == [["tiny", str(region)] for region in range(4)]
    assert {row[2] for row in rows} <= {"free", "parked"}
    tier = told(daemon, capsys, "tier").splitlines()
    assert tier[0].endswith("(resident)")
    assert tier[-1].split()[0] == "tiny"


@pytest.mark.parametrize("scratch", [False, True])
def test_a_stream_without_a_region_is_told_of(
    folder: Path, capsys: pytest.CaptureFixture[str], scratch: bool
) -> None:
    model = f"regions = 1\nresident_prefill_allowed = {str(scratch).lower()}"
    with serving(settings(folder, "homeless", model=model)) as daemon, ThreadPoolExecutor(2) as pool:
        long = {"prompt": "the and of to in is " * 60, "max_tokens": 20}
        while "unhomed" not in (counted := passes(daemon)):  # the CPU has yet to be made ready
            ends = [pool.submit(daemon.complete, **long), pool.submit(daemon.complete, max_tokens=30)]
            assert all(end.result() for end in ends)
        table = [line.split() for line in told(daemon, capsys, "passes").splitlines()[1:]]
        assert {row[2]: float(row[-1]) for row in table} == counted
        states = [line.split()[2] for line in told(daemon, capsys, "regions").splitlines()[1:]]
        assert states == ["parked", *["scratch"] * scratch]


def test_a_text_is_the_same_where_the_host_sees_the_devices_memory_and_all_ends_in_good_order(
    daemon: Daemon, folder: Path
) -> None:
    """The second daemon ends while its device works."""
    seeing = serving(settings(folder, "ended"), TIERD_HIDE_HOST_VISIBLE="0")
    with seeing as other, ThreadPoolExecutor(1) as pool:
        assert other.complete() == daemon.complete()
        running = pool.submit(other.http.post, "/v1/completions", json={**PROMPT, "max_tokens": 1000})
        while metric(other, 'tierd_requests_running{model="tiny"}') == 0:
            time.sleep(0.01)
        other.process.terminate()
        assert other.process.wait(WAIT_S) == 0
        assert running.result().status_code in (200, 503)


def fails(config: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tierd", "serve", "--config", str(config), *arguments]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S, check=False, env=os.environ | WATCHED
    )
    assert run.stdout == ""
    return run.returncode, run.stderr.splitlines()[-1]


def test_too_little_memory_is_served_by_the_cpu_or_not_at_all_where_the_gpu_is_required(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    little = "mode = 'resident'\nvram_limit_mb = 1"
    reason = "weights and 4 regions at context 1024 need "
    hint = " of the device's 1.0 MiB; it would fit with context = "
    config = settings(folder, "little", little, "context = 1024\nctx_strict = true")
    with serving(config) as daemon:
        assert metric(daemon, 'tierd_model_outcome{model="tiny",outcome="cpu"}') == 1
        (slot,) = at_socket(daemon.socket).get("/slots")["slots"]
        assert slot["outcome"] == "cpu"
        assert slot["decline"].startswith(reason)
        assert hint in slot["decline"]
        assert main(["ctl", "--socket", str(daemon.socket), "slots"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"tiny is not on the GPU: {slot['decline']}"
        assert daemon.complete()
        load = ["load", str(folder / "tiny.gguf"), "--id", "must", "--require", "resident", "--streams", "4"]
        strict = ["--context", "1024", "--ctx-strict"]
        assert main(["ctl", "--socket", str(daemon.socket), *load, *strict]) == 3
        assert "must: it must be resident on the GPU, as `require` demands, but " in capsys.readouterr().err
        assert [slot["id"] for slot in at_socket(daemon.socket).get("/slots")["slots"]] == ["tiny"]

    required = f"{little}\nrequire = 'resident'"
    code, line = fails(settings(folder, "required", required, "context = 1024\nctx_strict = true"))
    assert code == 3
    demand = "tierd: tiny: it must be resident on the GPU, as `require` demands, but "
    assert line == f"{demand}{slot['decline']}"


def test_models_says_where_they_would_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(Path(os.environ["XDG_CACHE_HOME"]).rglob("*.image"))
    assert main(["models", "--json", "--config", str(settings(folder, "shown"))]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["outcome"], report["decline"], report["problem"]) == ("gpu:resident", "", None)
    assert sorted(Path(os.environ["XDG_CACHE_HOME"]).rglob("*.image")) == before  # nothing was packed

    assert (
        main(["models", "--config", str(settings(folder, "f32", "mode = 'resident'", "kv_dtype = 'f32'"))])
        == 0
    )
    table, decline = capsys.readouterr().out.split("\n\n")
    assert table.splitlines()[1].split()[-1] == "cpu"
    assert decline.startswith("tiny: not on the GPU: K/V codec f32 is for the CPU only")
