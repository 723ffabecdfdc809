from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from tierd.service.activation import take_listener

# Takes what is handed over and says what it got. Sockets are handed over from 3 on, which a test has in use.
TAKE = """
import os, sys
from tierd.errors import SettingsError
from tierd.service.activation import take_listener
os.environ["LISTEN_PID"] = sys.argv[1].replace("own", str(os.getpid()))
try:
    listener = take_listener(os.environ)
    print(listener and listener.getsockname()[1], listener and listener.get_inheritable())
except SettingsError as error:
    print(error)
assert not [name for name in os.environ if name.startswith("LISTEN_")]
"""


def taken(sockets: Sequence[socket.socket], names: str = "", process: str = "own") -> str:
    """Return what a process says that is handed these sockets."""

    def hand_over() -> None:
        for place, source in enumerate([os.dup(each.fileno()) for each in sockets], 3):
            os.dup2(source, place)

    environment = (
        os.environ | {"LISTEN_FDS": str(len(sockets))} | ({"LISTEN_FDNAMES": names} if names else {})
    )
    command = [sys.executable, "-c", TAKE, process]
    return subprocess.run(
        command, env=environment, preexec_fn=hand_over, close_fds=False, stdout=-1, text=True, check=True
    ).stdout.strip()


def test_one_is_taken_whatever_it_is_called_and_of_several_the_public_one() -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        one, other = (each.getsockname()[1] for each in (first, second))
        assert taken([first]) == f"{one} False"
        assert taken([first], "tierd.socket") == f"{one} False"
        assert taken([first, second], "admin:public") == f"{other} False"
        assert taken([first, second], "a:b").startswith("LISTEN_FDS: 2 sockets were handed over, 0 of them")


def test_what_does_not_listen_on_tcp_is_refused() -> None:
    with ExitStack() as stack:
        for unfit in (
            stack.enter_context(socket.socket(socket.AF_INET)),
            stack.enter_context(socket.socket(socket.AF_UNIX)),
            stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
        ):
            assert "does not listen on TCP" in taken([unfit])


def test_what_is_meant_for_another_process_is_not_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert taken([listener], process="1") == "None None"


@pytest.mark.parametrize("environment", [{}, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0"}])
def test_without_any_there_is_none(environment: dict[str, str]) -> None:
    assert take_listener(environment) is None
    assert environment == {}
