from __future__ import annotations

import logging
import os
import socket
import time
from pathlib import Path

import pytest

from manager import manager
from tierd.service.notify import Notifier


def test_what_systemd_has_set_is_taken_out() -> None:
    environment = {
        "NOTIFY_SOCKET": "/run/s",
        "WATCHDOG_USEC": "2500000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }
    notifier = Notifier.taken_from(environment)
    assert notifier.listens
    assert notifier.watchdog_s == 2.5
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "1000000"},
        {"NOTIFY_SOCKET": "vsock:2:1234", "WATCHDOG_USEC": "1000000"},
    ],
)
def test_without_an_address_nobody_is_told(environment: dict[str, str]) -> None:
    notifier = Notifier.taken_from(environment)
    assert not notifier.listens
    assert notifier.watchdog_s is None
    notifier.ready("serves nothing")


@pytest.mark.parametrize(
    "watchdog",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
    ],
)
def test_the_watchdog_may_be_off_or_of_another_process(watchdog: dict[str, str]) -> None:
    assert Notifier.taken_from({"NOTIFY_SOCKET": "@x", **watchdog}).watchdog_s is None


def test_what_is_no_unicode_is_told_too() -> None:
    """Names of files may be any bytes."""
    with manager() as systemd:
        Notifier(systemd.address).status("no such file: a\udcff")
        systemd.await_one(lambda told: told == {"STATUS": "no such file: a\\udcff"})


def test_each_message_has_its_lines() -> None:
    with manager() as systemd:
        notifier = Notifier(systemd.address)
        before = time.monotonic_ns() // 1000
        notifier.ready("serves smol")
        notifier.reloading("reads")
        notifier.stopping("ends", 2.5)
        notifier.takes_longer(60)
        notifier.alive()
        notifier.status("serves nothing")
        end = systemd.await_one(lambda told: told == {"STATUS": "serves nothing"})
        ready, reloading, stopping, longer, alive = systemd.told[: end - 1]
    assert ready == {"READY": "1", "STATUS": "serves smol"}
    assert before <= int(reloading.pop("MONOTONIC_USEC")) <= time.monotonic_ns() // 1000
    assert reloading == {"RELOADING": "1", "STATUS": "reads"}
    assert stopping == {"STOPPING": "1", "STATUS": "ends", "EXTEND_TIMEOUT_USEC": "2500000"}
    assert longer == {"EXTEND_TIMEOUT_USEC": "60000000"}
    assert alive == {"WATCHDOG": "1"}


def test_a_path_is_an_address_too(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "s"))
        Notifier(str(tmp_path / "s")).alive()
        assert listener.recv(100) == b"WATCHDOG=1"


def test_where_nobody_listens_any_more_it_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Notifier(str(tmp_path / "gone")).alive()
    assert [record.getMessage() for record in caplog.records] == [
        "systemd is not told WATCHDOG=1: [Errno 2] No such file or directory"
    ]
