"""One Host in each request, on every door: RFC 9112, section 3.2."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator

import pytest

from live_admin import administered
from tierd.settings import ModelSettings

Door = Callable[[], socket.socket]


@pytest.fixture(scope="module")
def doors(tiny_model: ModelSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Door]]:
    path = tmp_path_factory.mktemp("authority") / "admin.sock"

    def unix() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(path))
        return connection

    def tcp(host: str, port: int) -> Door:
        return lambda: socket.create_connection((host, port))

    with administered(tiny_model, path) as house:
        yield {
            "public": house.live.connect,
            "admin": tcp(house.tcp.base_url.host, house.tcp.base_url.port or 80),
            "unix": unix,
        }


def answer_to(door: Door, *lines: bytes, target: bytes = b"/", version: bytes = b"1.1") -> tuple[int, str]:
    """Ask for the page, which needs no key; return the status and the error's message."""
    head = [b"GET " + target + b" HTTP/" + version, *lines, b"Connection: close"]
    with door() as connection:
        connection.sendall(b"\r\n".join(head) + b"\r\n\r\n")
        with connection.makefile("rb") as answer:
            content = answer.read()
    head_of_it, _, body = content.partition(b"\r\n\r\n")
    status = int(head_of_it.split(b" ", 2)[1])
    return status, "" if status == 200 else json.loads(body)["error"]["message"]


@pytest.mark.parametrize("name", ["public", "admin", "unix"])
class TestEveryDoor:
    @pytest.mark.parametrize(
        "lines",
        [
            [b"Host: localhost", b"Host: localhost"],
            [b"Host: localhost", b"A: b", b"hOST: evil.example.org"],
            [b"Host:", b"Host: localhost"],
        ],
    )
    @pytest.mark.parametrize("version", [b"1.0", b"1.1"])
    def test_two_hosts_are_refused(
        self, doors: dict[str, Door], name: str, lines: list[bytes], version: bytes
    ) -> None:
        status, message = answer_to(doors[name], *lines, version=version)
        assert (status, message) == (400, "the request has 2 Host headers; it may have one")

    def test_none_is_refused_where_there_must_be_one(self, doors: dict[str, Door], name: str) -> None:
        status, message = answer_to(doors[name])
        assert (status, message) == (400, "the request has no Host header, which HTTP/1.1 demands")
        assert answer_to(doors[name], version=b"1.0") == (200, "")

    @pytest.mark.parametrize(
        "host",
        [
            b"a b", b"localhost localhost", b"me@localhost", b"localhost/", b"localhost?", b"localhost#",
            b"http://localhost", b"localhost:port", b"localhost:-1", b"localhost:1:2", b"::1", b"[::1",
            b"[::1]x", b"[]", b"[localhost]", b"[127.0.0.1]", b"[::1]:80]", b"a\\b", b'"a"', b"<a>", b"%",
            b"%4", b"%zz", b"a\xff", "ä".encode(), b"a\tb", b"[fe80::1%]",
        ],
    )  # fmt: skip
    def test_what_is_no_host_is_refused(self, doors: dict[str, Door], name: str, host: bytes) -> None:
        status, message = answer_to(doors[name], b"Host: " + host)
        assert status == 400
        assert message.startswith("the request's Host is neither a name nor an address")

    @pytest.mark.parametrize(
        "host",
        [b"", b"localhost", b"LOCALHOST:80", b"localhost:", b" \tlocalhost\t ", b"127.0.0.1:1", b"[::1]:80",
         b"[fe80::1%25eth0]", b"a_b-c~d", b"%6cocalhost"]
    )  # fmt: skip
    def test_what_is_one_is_served(self, doors: dict[str, Door], name: str, host: bytes) -> None:
        assert answer_to(doors[name], b"Host: " + host) == (200, "")

    def test_a_whole_url_says_it_better_than_the_header(self, doors: dict[str, Door], name: str) -> None:
        """RFC 9112, section 3.2.2: Host does not count then, but it must be there."""
        door, called = doors[name], b"Host: localhost"
        assert answer_to(door, b"Host: evil.example.org", target=b"http://localhost/") == (200, "")
        assert answer_to(door, called, target=b"http://evil.example.org/")[0] == 403
        assert answer_to(door, called, target=b"http://me@localhost/")[0] == 400
        assert answer_to(door, target=b"http://localhost/")[0] == 400
        assert answer_to(door, called, called, target=b"http://localhost/")[0] == 400
