"""The process that has Kompute: it fails alone, is given up in time, and never outlives the daemon."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from backends.rails.conftest import Opener
from backends.rails.models import batch
from kompute import Faults, needs_kompute
from tierd.backends.patience import step_timeout_s
from tierd.backends.rails.card import Card, Shared
from tierd.backends.rails.executor import RailsExecutor
from tierd.backends.rails.products import Products
from tierd.backends.rails.witness import open_card
from tierd.errors import DeviceLostError, DeviceTimeoutError, NoDeviceError

pytestmark = needs_kompute
PATIENCE_S = 20.0


@pytest.fixture
def card(faults: Faults) -> Iterator[Card]:
    card = open_card(allow_software=True)
    yield card
    card.close()
    wait_for(lambda: not is_there(card.process_id))


@pytest.fixture
def laid(card: Card, opened: Opener) -> RailsExecutor:
    """All layers of a tiny model are on the card."""
    executor = opened()
    executor.lay(Products(card, executor.groups, executor.host), executor.groups)
    return executor


def is_there(process: int) -> bool:
    """Whether a process is there that has not ended; a child that has is reaped by whoever started it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ("raise", "{name} failed at a product: the driver says no"),
        ("nothing", "{name} failed at a product: nothing came back"),
        (
            "die",
            "{name} is lost: Kompute's process was ended by SIGSEGV (the driver has seen a page fault)",
        ),
    ],
)
def test_a_step_that_fails_there_is_the_hosts_and_the_process_is_given_up(
    fault: str, failure: str, card: Card, laid: RailsExecutor, faults: Faults
) -> None:
    on_device = laid.run(batch()).copy()
    assert laid.failure == ""
    faults.set(fault)
    whole = laid.run(batch())
    assert (laid.layers, laid.failure) == ((), failure.format(name=card.name))
    assert np.abs(whole - on_device).max() <= 2e-2 * np.abs(whole).max()
    np.testing.assert_array_equal(whole, laid.host.run(batch()))
    assert card.abandoned == laid.failure
    wait_for(lambda: not is_there(card.process_id))
    failed = pytest.raises(DeviceLostError, match=re.escape(laid.failure))
    with contextlib.closing(Shared(4)) as shared, failed:
        card.tensor(4, shared)


def test_a_device_that_hangs_is_left_in_time_and_others_go_on_meanwhile(
    card: Card, laid: RailsExecutor, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert card._process._timeout_s == step_timeout_s(software=True) == 1200.0
    monkeypatch.setattr(card._process, "_timeout_s", 1.0)
    faults.set("hang")
    step = threading.Thread(target=laid.run, args=(batch(),))
    began = before = time.monotonic()
    step.start()
    turns, longest = 0, 0.0
    while step.is_alive():
        time.sleep(0.001)
        now = time.monotonic()
        turns, longest, before = turns + 1, max(longest, now - before), now
    step.join()
    assert 1.0 <= time.monotonic() - began < PATIENCE_S
    assert turns > 20
    assert longest < 0.9
    assert laid.failure.startswith(f"{card.name} did not finish in 1 s and was left; look into")


def test_a_step_that_waits_for_a_device_is_the_hosts_once_that_is_given_up(
    card: Card, laid: RailsExecutor, faults: Faults
) -> None:
    faults.set("hang")
    step = threading.Thread(target=laid.run, args=(batch(),))
    step.start()
    wait_for(card._process._lock.locked)
    laid.abandon(DeviceTimeoutError("it was left"))
    step.join(PATIENCE_S)
    assert not step.is_alive()
    assert (laid.layers, laid.failure, laid.handed_back) == ((), "it was left", True)
    laid.abandon(DeviceTimeoutError("it was left again"))
    assert card.abandoned == "it was left"


def test_it_has_no_descriptors_but_its_own_and_ends_with_its_card(card: Card) -> None:
    with Path(os.devnull).open() as mine:
        os.set_inheritable(mine.fileno(), True)
        other = open_card(allow_software=True)
        there = Path(f"/proc/{other.process_id}/fd")
        kinds = sorted(os.readlink(there / name).split(":")[0] for name in os.listdir(there))
        other.close()
    assert kinds == ["/dev/null", "pipe", "pipe", "socket"]
    assert not is_there(other.process_id)
    assert is_there(card.process_id)


def test_one_that_cannot_load_kompute_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kp.py").write_text("raise ImportError('libfmt.so.9: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    message = r"Kompute cannot be loaded \(libfmt\.so\.9: cannot open shared object file\); `make serve`"
    with pytest.raises(NoDeviceError, match=message):
        open_card(allow_software=True)


def test_one_that_breaks_says_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kp.py").write_text("raise RuntimeError('no such thing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    message = r"Kompute's process ended with exit code 1 \(RuntimeError: no such thing\)$"
    with pytest.raises(DeviceLostError, match=message):
        open_card(allow_software=True)


@pytest.mark.parametrize("hangs", [False, True])
def test_it_dies_with_the_daemon(hangs: bool, faults: Faults, tmp_path: Path) -> None:
    """Where it waits for calls, and where it waits for the device."""
    program = tmp_path / "daemon.py"
    program.write_text(
        "import sys, threading\n"
        "from tierd.backends.rails.card import Shared\n"
        "from tierd.backends.rails.witness import open_card\n"
        "card = open_card(allow_software=True)\n"
        "print(card.process_id, flush=True)\n"
        "sys.stdin.readline()\n"
        "recording = card.record([card.tensor(4, Shared(4))], [], [])\n"
        "threading.Timer(0.5, lambda: print('runs', flush=True)).start()\n"
        "recording.run([4], [])\n"
    )
    daemon = subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        process = int(daemon.stdout.readline())
        assert is_there(process)
        if hangs:
            faults.set("hang")
            daemon.stdin.write("\n")
            daemon.stdin.flush()
            assert daemon.stdout.readline() == "runs\n"
        daemon.send_signal(signal.SIGKILL)
    wait_for(lambda: not is_there(process))
