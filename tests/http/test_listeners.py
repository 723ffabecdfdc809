from __future__ import annotations

import os
import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from live import Live
from tierd.errors import SettingsError
from tierd.http.listeners import listen, listen_at, url


def test_a_port_in_use_is_one_line(live: Live) -> None:
    address = live.url.removeprefix("http://")
    with pytest.raises(SettingsError, match=f"server.listen: cannot listen on {address}: the port is in use"):
        listen(address)


def test_two_that_both_only_bind_find_each_other() -> None:
    with closing(listen("127.0.0.1:0")) as first:
        address = url(first).removeprefix("http://")
        with pytest.raises(
            SettingsError, match=f"admin.listen: cannot listen on {address}: the port is in use"
        ):
            listen(address, "admin.listen")


@pytest.mark.parametrize("address", ["no-such-host.invalid:1", "203.0.113.7:0"])
def test_an_address_of_nobody_is_one_line(address: str) -> None:
    with pytest.raises(SettingsError, match=f"server.listen: cannot listen on {address}: ") as refused:
        listen(address)
    assert "\n" not in str(refused.value)


def test_port_zero_takes_a_free_port() -> None:
    with closing(listen("127.0.0.1:0")) as listener:
        assert url(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert listener.getsockname()[1] > 0


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_ipv6_address_is_bracketed() -> None:
    with closing(listen("[::1]:0")) as listener:
        assert url(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        return caller.connect_ex(str(path)) == 0


class TestUnixSocket:
    def test_is_its_owners_alone_and_goes_in_the_end(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "admin.sock"
        before = os.umask(0)
        try:
            with listen_at(path):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
                assert connects(path)
        finally:
            os.umask(before)
        assert not path.exists()

    def test_one_that_nobody_listens_on_is_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "admin.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(str(path))
        assert not connects(path)
        with listen_at(path):
            assert connects(path)

    def test_one_that_is_in_use_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "admin.sock"
        with listen_at(path):
            with pytest.raises(SettingsError) as refused, listen_at(path):
                pass
            assert connects(path)
        assert str(refused.value) == (
            f"admin.socket: cannot listen on {path}: the path is in use; "
            "stop what uses it or choose another path"
        )

    def test_one_that_is_too_busy_to_answer_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "admin.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as busy:
            busy.bind(str(path))
            busy.listen(0)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting:
                waiting.connect(str(path))  # now its backlog is full
                with pytest.raises(SettingsError, match="the path is in use"), listen_at(path):
                    pass
        assert path.exists()

    def test_what_is_no_socket_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "admin.sock"
        path.write_text("mine")
        with pytest.raises(SettingsError, match="File exists; choose another path"), listen_at(path):
            pass
        assert path.read_text() == "mine"

    def test_one_that_has_taken_its_place_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "admin.sock"
        with listen_at(path):
            path.unlink()
            path.write_text("another's")
        assert path.read_text() == "another's"

    def test_one_that_has_gone_is_not_missed(self, tmp_path: Path) -> None:
        with listen_at(tmp_path / "admin.sock"):
            (tmp_path / "admin.sock").unlink()

    @pytest.mark.parametrize("name", ["x" * 120, "file/admin.sock"])
    def test_a_path_that_will_not_do_is_one_line(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "file").touch()
        with (
            pytest.raises(SettingsError, match="; choose another path") as refused,
            listen_at(tmp_path / name),
        ):
            pass
        assert str(refused.value).startswith(f"admin.socket: cannot listen on {tmp_path / name}: ")
