"""Opens model files and runs a step of each, every file in a child process of its own.

Run as `opener.py FOLDER PROCESSES SECONDS MEMORY`. It loads everything once, then forks for each
`*.gguf` in the folder, so many at a time. A child may take SECONDS, and add MEMORY bytes to the address
space that it was born with. On standard output it gets a line of JSON for every file:

    {"file", "outcome": "ran" | "refused" | "crashed" | "hung", "message", "peak" (bytes), "seconds"}
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from tierd.backends import library
from tierd.backends.host import HostBackend
from tierd.core import Batch, Chunk
from tierd.errors import TierdError
from tierd.settings import KVSettings, ModelSettings, Settings
from tierd.slot import open_slot
from tierd.tier.host_site import HostSite

RAN, REFUSED, CRASHED = 0, 10, 11
SETTINGS = Settings(kv=KVSettings(memory_mb=64))


def open_and_step(path: Path) -> None:
    """Open a model as the daemon does, encode a prompt, feed it, and spell out the token that comes."""
    backend = HostBackend(threads=2)
    slot = open_slot(ModelSettings(id="model", path=path), SETTINGS, HostSite(backend))
    if slot.renderer is not None:
        slot.renderer.render([{"role": "user", "content": "the one"}])
    ids = slot.tokenizer.encode("the <|im_end|> \xff\U0001f642 one", add_special=True, parse_special=True)
    ids = (ids or [0])[: slot.context]
    pages = tuple(range(-(-len(ids) // slot.executor.page_positions)))
    last = len(ids) - 1
    logits = slot.executor.run(Batch((Chunk(tuple(ids), start=0, pages=pages, logit_rows=(last,)),)))
    slot.tokenizer.decode([library.argmax(logits[0])])
    slot.close()
    backend.close()


def attempt(path: Path, memory: int, report: int) -> int:
    """Try a file within bounds; write one line to `report` and return the exit status."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, size + memory))
    status, message = RAN, ""
    try:
        open_and_step(path)
    except TierdError as error:
        status, message = REFUSED, str(error)
    except BaseException:
        status, message = CRASHED, traceback.format_exc()
    os.write(report, message.encode("utf-8", "backslashreplace")[:4000])
    return status


@dataclass
class Child:
    path: Path
    pid: int
    report: int
    born: float


def fork(path: Path, memory: int) -> tuple[int, Child]:
    """Start a child; return a descriptor that can be read once it has ended."""
    report, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os._exit(attempt(path, memory, end))
    os.close(end)
    return os.pidfd_open(pid), Child(path, pid, report, time.monotonic())


def outcome(child: Child, hung: bool) -> dict[str, object]:
    """Collect a child that has ended and say how it went."""
    message = os.read(child.report, 4000).decode()
    os.close(child.report)
    _, status, usage = os.wait4(child.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    word = "hung" if hung else {RAN: "ran", REFUSED: "refused"}.get(code, "crashed")
    return {
        "file": child.path.name,
        "outcome": word,
        "message": message or f"status {code}",
        "peak": usage.ru_maxrss * 1024,
        "seconds": time.monotonic() - child.born,
    }


def main(folder: Path, processes: int, seconds: float, memory: int) -> None:
    """Try all files."""
    waiting = sorted(folder.glob("*.gguf"), reverse=True)
    open_and_step(waiting[-1])
    running: dict[int, Child] = {}
    while waiting or running:
        while waiting and len(running) < processes:
            descriptor, child = fork(waiting.pop(), memory)
            running[descriptor] = child
        ended, _, _ = select.select(running, (), (), 0.1)
        for descriptor, child in list(running.items()):
            hung = descriptor not in ended and time.monotonic() - child.born > seconds
            if hung:
                os.kill(child.pid, signal.SIGKILL)
            if hung or descriptor in ended:
                os.close(descriptor)
                del running[descriptor]
                print(json.dumps(outcome(child, hung)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
