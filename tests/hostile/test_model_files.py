"""Malformed GGUF files, each opened, compiled and stepped in a process of its own, on the sanitised kernels.

The bound on memory is RLIMIT_AS on what a child adds: AddressSanitizer reserves terabytes of address space
when a process starts, so the limit is the size that the child is born with plus a gibibyte.
`allocator_may_return_null` lets an allocation that is refused look as it does without the sanitisers.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from forged import U32, Entry, Key
from hostile.anatomy import Parts, take_apart
from hostile.malformed import malformed_files
from tierd.backends.host import HostBackend
from tierd.errors import ModelError
from tierd.settings import KVSettings, ModelSettings, Settings
from tierd.slot import open_slot
from tierd.tier.host_site import HostSite
from tiny import write_gemma3, write_llama

SEED = 20_240_229
SECONDS = 5.0
MEMORY = 1 << 30
OPENER = Path(__file__).with_name("opener.py")

Result = dict[str, Any]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[Parts]:
    folder = tmp_path_factory.mktemp("sound")
    sizes = {"n_embd": 64, "heads": 2, "head_size": 32, "ff": 64, "layers": 2}
    paths = [
        write_llama(folder / "float.gguf", **sizes),
        write_llama(folder / "four.gguf", format="Q4_0", tied=False, biases=True, **sizes),
        write_gemma3(folder / "eight.gguf", format="Q8_0", **sizes),
    ]
    return [take_apart(path.read_bytes()) for path in paths]


def try_all(folder: Path, sanitized_environment: dict[str, str], memory: int = MEMORY) -> list[Result]:
    """Open every file of a folder; the first, by name, must be sound."""
    options = sanitized_environment["ASAN_OPTIONS"] + ":allocator_may_return_null=1"
    # AddressSanitizer finds the C++ library's throw only where that is loaded when the process starts.
    stdcxx = subprocess.run(
        ["gcc", "-print-file-name=libstdc++.so.6"], capture_output=True, text=True, check=True
    )
    run = subprocess.run(
        [sys.executable, str(OPENER), str(folder), "2", str(SECONDS), str(memory)],
        env=os.environ
        | sanitized_environment
        | {
            "ASAN_OPTIONS": options,
            "LD_PRELOAD": f"{sanitized_environment['LD_PRELOAD']} {stdcxx.stdout.strip()}",
            "OPENBLAS_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    results = [json.loads(line) for line in run.stdout.splitlines()]
    for result in results:
        assert result["outcome"] in ("ran", "refused"), f"{result}\n{run.stderr}"
        if result["outcome"] == "refused":
            assert "\n" not in result["message"], result
    return results


@pytest.mark.parametrize("count", [250, pytest.param(500, marks=pytest.mark.long)])
def test_malformed_files_are_refused_by_name_or_run(
    count: int, sound: list[Parts], tmp_path: Path, sanitized_environment: dict[str, str]
) -> None:
    for index, parts in enumerate(sound):
        assert parts.forge() == parts.content
        (tmp_path / f"0-sound-{index}.gguf").write_bytes(parts.content)
    for index, case in enumerate(malformed_files(sound, count, SEED)):
        (tmp_path / f"{1 + index}-{case.name}.gguf").write_bytes(case.content)
    results = try_all(tmp_path, sanitized_environment)
    assert len(results) == count + len(sound)
    malformed = [result for result in results if not result["file"].startswith("0-")]
    outcomes = Counter(result["outcome"] for result in malformed)
    named = [result for result in malformed if re.search(r"\b(key|keys|tensor) [^ ]", result["message"])]
    assert outcomes["refused"] + outcomes["ran"] == count
    assert len(named) >= 0.7 * count, outcomes
    assert outcomes["ran"] >= 0.05 * count, outcomes
    assert all(result["outcome"] == "ran" for result in results if result["file"].startswith("0-"))
    assert max(result["peak"] for result in results) < MEMORY


def wide(tmp_path: Path, width: int) -> Path:
    """A small file whose feed-forward is so wide that a step of it needs much more than the file's size."""
    path = write_llama(tmp_path / "wide.gguf", n_embd=1, heads=1, kv_heads=1, head_size=2, layers=1, ff=width)
    assert path.stat().st_size < 14 * width
    return path


def test_a_file_that_asks_for_too_much_memory_is_refused(
    tmp_path: Path, sanitized_environment: dict[str, str]
) -> None:
    write_llama(tmp_path / "0.gguf")
    wide(tmp_path, 400_000)
    results = try_all(tmp_path, sanitized_environment, memory=256 << 20)
    sound, greedy = sorted(results, key=lambda result: str(result["file"]))
    assert sound["outcome"] == "ran"
    assert greedy["outcome"] == "refused"
    assert re.search("no memory|not the memory|MiB are free", greedy["message"])


def test_what_would_leave_the_machine_without_memory_is_refused_before_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tierd.tier.host_needs.available_memory", lambda: 64 << 20)
    backend = HostBackend(threads=1)
    settings = Settings(kv=KVSettings(memory_mb=1))
    with pytest.raises(ModelError, match=r"a step of 264 rows need [\d,]+ MiB, but only 64 MiB are free"):
        open_slot(ModelSettings(id="wide", path=wide(tmp_path, 50_000)), settings, HostSite(backend))
    backend.close()


def test_layers_without_tensors_are_not_counted_out(sound: list[Parts], tmp_path: Path) -> None:
    gemma3 = sound[2]
    keys = [key for key in gemma3.keys if key.name != "gemma3.block_count"]
    path = tmp_path / "endless.gguf"
    path.write_bytes(gemma3.forge([*keys, Key("gemma3.block_count", U32, struct.pack("<I", 2**31 - 1))]))
    backend = HostBackend(threads=1)
    with pytest.raises(ModelError, match=r"key gemma3\.block_count is 2147483647, outside 1 to"):
        open_slot(ModelSettings(id="endless", path=path), Settings(), HostSite(backend))
    backend.close()


def test_a_tensor_more_is_refused_by_its_name(sound: list[Parts], tmp_path: Path) -> None:
    path = tmp_path / "more.gguf"
    extra = Entry("blk.0.ghost.weight", (32,), 0, -(-len(sound[0].data) // 32) * 32)
    padding = bytes(-len(sound[0].data) % 32 + 128)
    path.write_bytes(sound[0].forge(entries=[*sound[0].entries, extra]) + padding)
    backend = HostBackend(threads=1)
    with pytest.raises(ModelError, match=r"tensor blk\.0\.ghost\.weight belongs to nothing"):
        open_slot(ModelSettings(id="more", path=path), Settings(), HostSite(backend))
    backend.close()
