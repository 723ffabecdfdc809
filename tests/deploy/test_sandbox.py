"""tierd serves from a Vulkan device, llvmpipe, under the restrictions of its unit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from deploy.sandbox import NOT_PLAYED, PLAYED, UNIT, confined
from deploy.unit import directives
from live import LONG_WAIT_S
from manager import manager
from tiny import write_llama

# What each line does is refused.
REFUSED = """
import ctypes, json, os, socket, time
tried = {}
def attempt(name, act):
    try:
        tried[name] = repr(act())
    except OSError as error:
        tried[name] = error.strerror
library = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(library, name)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
attempt("write", lambda: open("/etc/tierd-was-here", "w"))
attempt("write beside its folders", lambda: open("/var/lib/other", "w"))
attempt("tune", lambda: open("/proc/sys/vm/swappiness", "w"))
attempt("packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("namespace", lambda: call("unshare", 0x10000000))
attempt("mount", lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None))
attempt("log", lambda: call("klogctl", 3, None, 0))
attempt("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()))
attempt("reboot", lambda: call("reboot", 0))
tried["homes"] = os.listdir("/home")
tried["memory"] = sorted(set(os.listdir("/dev")) & {"mem", "kvm", "loop0", "fuse"})
tried["user"] = os.getuid()
print(json.dumps(tried))
"""


@pytest.fixture(scope="module", autouse=True)
def _bubblewrap() -> None:
    """Where the system lets nobody make namespaces there is nothing to test with."""
    tried = subprocess.run(
        ["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        pytest.skip(f"bubblewrap cannot be used here: {tried.stderr.strip()}")


def test_every_directive_is_played_or_named_as_not() -> None:
    names = {name for name, _ in directives(UNIT, "Service")}
    assert names == set(PLAYED) | NOT_PLAYED
    assert not set(PLAYED) & NOT_PLAYED


def test_what_the_unit_forbids_is_refused(tmp_path: Path) -> None:
    with confined(tmp_path, [sys.executable, "-c", REFUSED], {}) as process:
        out, err = process.communicate(timeout=LONG_WAIT_S)
    assert process.returncode == 0, err
    said = json.loads(out)
    read_only, forbidden = "Read-only file system", "Operation not permitted"
    assert said == {
        "write": read_only,
        "write beside its folders": read_only,
        "tune": read_only,
        "packets": forbidden,
        "netlink": forbidden,
        "namespace": forbidden,
        "mount": forbidden,
        "log": forbidden,
        "clock": forbidden,
        "reboot": forbidden,
        "homes": said["homes"],
        "memory": [],
        "user": 1000,
    }


def test_it_serves_from_a_vulkan_device(tmp_path: Path) -> None:
    state, cache = tmp_path / "var" / "lib" / "tierd", tmp_path / "var" / "cache" / "tierd"
    (state / "models").mkdir(parents=True)
    write_llama(state / "models" / "tiny.gguf")
    (state / "tierd.toml").write_text(
        "server.listen = '127.0.0.1:0'\nengine.threads = 1\nstate.dir = '/var/lib/tierd/kv'\n"
        "[gpu]\nallow_software = true\nrequire = 'resident'\n[[models]]\nid = 'tiny'\npath = 'tiny.gguf'\n"
    )
    command = [sys.executable, "-m", "tierd", "serve", "--config", "/var/lib/tierd/tierd.toml"]
    with manager() as systemd:
        told = {"NOTIFY_SOCKET": systemd.address, "TIERD_HIDE_HOST_VISIBLE": "1"}
        with confined(tmp_path, command, told) as process:
            assert process.stdout is not None
            ready = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert ready is not None, process.stderr and process.stderr.read()
            systemd.await_one(lambda message: "READY" in message)
            assert systemd.told[-1]["STATUS"].startswith("serves tiny (gpu:resident);")
            with httpx.Client(base_url=ready[0], timeout=LONG_WAIT_S, trust_env=False) as client:
                asked = {"prompt": "the of and", "max_tokens": 4, "ignore_eos": True, "temperature": 0}
                answer = client.post("/v1/completions", json=asked).json()
                assert answer["usage"]["completion_tokens"] == 4
            (daemon,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(daemon), signal.SIGTERM)
            assert process.wait(LONG_WAIT_S) == 0
        systemd.await_one(lambda message: "STOPPING" in message)
    assert list((state / "kv" / "bank").glob("*.rows"))
    assert (cache / "tierd").is_dir()
