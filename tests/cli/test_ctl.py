from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import tierd
from live import Live, serve, wait_until
from tierd.cli import main
from tierd.core import PassReason
from tierd.engine import BankSnapshot, RegionSnapshot, RegionState, SessionSnapshot, Snapshot, SwitchSnapshot
from tierd.engine.snapshot import Rails
from tierd.http.listeners import listen, listen_at, url
from tierd.settings import ModelSettings
from tierd.tier.status import TierStatus

TOKEN = "0123456789abcdef"
LONG_ID = f"cmpl-{'0123456789abcdef' * 4}"


@dataclass(frozen=True)
class Daemon:
    """A daemon whose admin socket is where `tierd serve` puts it, and its admin URL."""

    live: Live
    url: str


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ctl")


@pytest.fixture(scope="module")
def daemon(model: ModelSettings, runtime: Path) -> Iterator[Daemon]:
    with (
        listen_at(runtime / "tierd" / "admin.sock") as unix,
        closing(listen("127.0.0.1:0")) as tcp,
        serve([model], admin=[(unix, None), (tcp, TOKEN)]) as live,
    ):
        yield Daemon(live, url(tcp))


@pytest.fixture(autouse=True)
def _found(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o640)
    return file


def ctl(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["ctl", *map(str, arguments)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def fails(capsys: pytest.CaptureFixture[str], code: int, *arguments: str | Path) -> str:
    assert main(["ctl", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("tierd: ")


def test_status_as_a_table(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    up, headings, row = ctl(capsys, "status").splitlines()
    assert up.startswith(f"tierd {tierd.__version__}, up for 0:0")
    columns = ["model", "outcome", "seat", "running", "paused", "waiting", "pages", "used", "cached", "free"]
    assert headings.split() == columns
    assert row.split()[:5] == ["tiny", "cpu", "0", "0", "0"]


def test_status_and_slots_as_json(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    status = json.loads(ctl(capsys, "status", "--json"))
    assert [model["id"] for model in status["models"]] == ["tiny"]
    (slot,) = json.loads(ctl(capsys, "slots", "--json"))["slots"]
    assert (slot["id"], slot["context"]) == ("tiny", 256)


def test_slots_as_a_table(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    headings, row = ctl(capsys, "slots").splitlines()
    columns = ["model", "architecture", "outcome", "K/V", "context", "streams", "prompt", "output"]
    assert headings.split() == columns
    assert row.split() == ["tiny", "(default)", "llama", "cpu", "f16", "256", "8", "256", "256"]


@pytest.fixture
def published(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """What the daemon's engine, which rests, has said last: of a model that is on a GPU."""
    now = time.monotonic()
    model = replace(
        daemon.live.engine.snapshot.models["tiny"],
        outcome="gpu:resident",
        seat="leaving",
        regions=(
            RegionSnapshot(region=0, state=RegionState.LIVE, positions=1234, request=LONG_ID, used=now),
            RegionSnapshot(region=1, state=RegionState.PINNED, positions=5, claim=7, used=now - 3600),
            RegionSnapshot(region=2, state=RegionState.FREE),
        ),
        sessions=(
            SessionSnapshot(request=LONG_ID, region=0, positions=1234, prompt=1000, generated=235),
            SessionSnapshot(
                request="cmpl-2",
                positions=4,
                prompt=4,
                generated=0,
                paused=True,
                moving=True,
                reason=PassReason.UNHOMED,
            ),
            SessionSnapshot(
                request="cmpl-3", positions=9, prompt=6, generated=4, paused=True, moving=True, away=True
            ),
        ),
        passes={PassReason.UNHOMED: 1500},
    )
    snapshot = Snapshot(
        {"tiny": model},
        BankSnapshot(limit=64 << 20, used=1 << 20, entries=3, dropped=1, dropped_positions=1200),
        SwitchSnapshot(incoming="other", outgoing=("tiny",), phase="hydrate", since=now - 3600),
        switches=1234,
    )
    tier = TierStatus(
        backend="resident",
        device="GPU [1]",
        products="bit for bit",
        used=3 << 20,
        budget=4096 << 20,
        reservations={"tiny": 5 << 19},
        away={"other": 1 << 20},
        faults=1,
        fault="it was lost",
    )
    monkeypatch.setattr(daemon.live.engine._loop, "snapshot", snapshot)
    monkeypatch.setattr(daemon.live.engine, "_tier", lambda: tier)
    return snapshot


@pytest.mark.parametrize(
    ("seat", "layers", "said"),
    [
        ("on", (1,), "tiny: matmuls of 1 of 2 layers are on the GPU for prompts: .#"),
        ("away", (), "tiny is away: nothing of it is on the GPU until its turn comes"),
    ],
)
def test_slots_tell_what_of_a_model_on_rails_is_on_the_gpu_now(
    seat: str,
    layers: tuple[int, ...],
    said: str,
    daemon: Daemon,
    published: Snapshot,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rails = Rails(on_device=layers, layers=(0, 1), failure="")
    model = replace(published.models["tiny"], outcome="gpu:rails", seat=seat, rails=rails)
    monkeypatch.setattr(daemon.live.engine._loop, "snapshot", replace(published, models={"tiny": model}))
    assert ctl(capsys, "slots").splitlines()[2:] == [said]


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_status_tells_how_the_bank_stands(published: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl(capsys, "status").splitlines()[-1] == (
        "host bank: 3 conversations in 1.0 of 64.0 MiB, 1 dropped (1,200 positions)"
    )


def test_status_tells_of_seats_and_of_a_switch(
    published: Snapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, row, switch, switches, _ = ctl(capsys, "status").splitlines()
    assert row.split()[:3] == ["tiny", "gpu:resident", "leaving"]
    assert switch.startswith("a switch is under way: other comes, tiny goes; hydrate after 3,60")
    assert switches == "switches so far: 1,234"


@pytest.mark.parametrize(
    ("incoming", "outgoing", "words"),
    [(None, ("tiny",), "tiny goes;"), ("other", (), "other comes;"), ("a", ("b", "c"), "a comes, b, c go;")],
)
def test_who_takes_part_in_a_switch(
    published: Snapshot,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    daemon: Daemon,
    incoming: str | None,
    outgoing: tuple[str, ...],
    words: str,
) -> None:
    switch = SwitchSnapshot(incoming=incoming, outgoing=outgoing, phase="drop", since=time.monotonic())
    monkeypatch.setattr(daemon.live.engine._loop, "snapshot", replace(published, switch=switch))
    assert f"under way: {words} drop after 0." in ctl(capsys, "status")


def test_tier_for_people(published: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl(capsys, "tier").splitlines()[:4] == [
        "GPU [1] (resident)",
        "products are bit for bit",
        "3.0 of 4,096.0 MiB used, 4,093.0 MiB free",
        "given up once in the middle of work, last for this: it was lost",
    ]
    assert words(ctl(capsys, "tier"))[4:] == [
        ["model", "where", "MiB"],
        ["tiny", "on", "the", "GPU", "2.5"],
        ["other", "away", "1.0"],
    ]


def test_regions_as_a_table(published: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    heading, live, pinned, free = words(ctl(capsys, "regions"))
    assert heading == ["model", "region", "state", "of", "positions", "last", "used"]
    assert live[:5] == ["tiny", "0", "live", LONG_ID, "1,234"]
    assert pinned[:6] == ["tiny", "1", "pinned", "claim", "7", "5"]
    assert pinned[6].startswith("3,60")
    assert free == ["tiny", "2", "free", "0", "never"]


def test_sessions_as_a_table(published: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    _, device, host, away, *why = ctl(capsys, "sessions").splitlines()
    assert device.split() == [LONG_ID, "tiny", "region", "0", "running", "1,234", "1,000", "235"]
    assert host.split() == ["cmpl-2", "tiny", "host", "(unhomed)", "moving,", "paused", "4", "4", "0"]
    assert away.split() == ["cmpl-3", "tiny", "bank", "away,", "paused", "9", "6", "4"]
    assert why == [
        "unhomed: no region of K/V was free on the device",
        "away: it waits for its model to be back on the GPU",
    ]


def test_passes_as_a_table(published: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    heading, row = words(ctl(capsys, "passes"))
    assert heading == ["model", "outcome", "reason", "words", "passes"]
    assert row == ["tiny", "gpu:resident", "unhomed", *PassReason.UNHOMED.words.split(), "1,500"]


def test_views_as_json(published: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    answers = {name: json.loads(ctl(capsys, name, "--json")) for name in ("tier", "regions", "sessions")}
    assert answers["tier"]["faults"] == 1
    assert answers["regions"]["models"][0]["regions"][1]["claim"] == 7
    assert answers["sessions"]["sessions"][1]["reason"] == "unhomed"
    assert json.loads(ctl(capsys, "passes", "--json")) == {
        "models": [
            {
                "id": "tiny",
                "outcome": "gpu:resident",
                "passes": [{"reason": "unhomed", "words": PassReason.UNHOMED.words, "count": 1500}],
            }
        ]
    }


def test_what_is_empty_is_said(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon.live.engine._loop, "snapshot", Snapshot())
    monkeypatch.setattr(daemon.live.engine, "_tier", lambda: TierStatus(reason="gpu.mode is off"))
    assert ctl(capsys, "tier") == "no GPU: gpu.mode is off\n"
    assert ctl(capsys, "regions") == "no model has regions on a GPU\n"
    assert ctl(capsys, "sessions") == "no stream is running\n"
    assert ctl(capsys, "passes") == "nothing that was meant for a GPU has run on the CPU\n"


def test_flush_says_what_it_freed(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = {"prompt": list(range(1, 30)), "max_tokens": 2, "ignore_eos": True}
    assert daemon.live.post("/v1/completions", prompt).status_code == 200
    wait_until(lambda: daemon.live.engine.snapshot.models["tiny"].pages_cached > 0)
    kept = daemon.live.engine.snapshot.models["tiny"].pages_cached
    assert ctl(capsys, "flush", "--model", "tiny") == f"{kept} pages were freed\n"
    assert ctl(capsys, "flush") == "0 pages were freed\n"
    assert json.loads(ctl(capsys, "flush", "--json")) == {"pages_freed": 0}
    assert fails(capsys, 1, "flush", "--model", "x") == "there is no model 'x'; models served: tiny"


def test_a_daemon_is_found_by_flag_or_settings(
    daemon: Daemon,
    capsys: pytest.CaptureFixture[str],
    runtime: Path,
    token_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = runtime / "tierd" / "admin.sock"
    config = tmp_path / "tierd.toml"
    config.write_text(f"admin.socket = '{path}'\n")
    address = daemon.url.removeprefix("http://")
    tcp = tmp_path / "tcp.toml"
    tcp.write_text(f"[admin]\nsocket = 'off'\nlisten = '{address}'\ntoken_file = 'token'\n")

    assert "tiny" in ctl(capsys, "--socket", path, "status")
    assert "tiny" in ctl(capsys, "--config", config, "status")
    assert "tiny" in ctl(capsys, "--config", tcp, "status")
    assert "tiny" in ctl(capsys, "--url", daemon.url, "--token-file", token_file, "status")
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{runtime / 'tierd'}:{tmp_path}")
    assert "tiny" in ctl(capsys, "status")


def test_faults_are_one_line(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fails(capsys, 1, "--url", daemon.url, "status").startswith("this needs the admin token")
    missing = tmp_path / "missing.sock"
    assert fails(capsys, 1, "--socket", missing, "status") == (
        f"cannot talk to {missing}: No such file or directory; is `tierd serve` running?"
    )
    off = tmp_path / "off.toml"
    off.write_text("admin.socket = 'off'\n")
    assert fails(capsys, 2, "--config", off, "status") == (
        "the settings turn the admin API off; name one with --socket or --url"
    )
    assert "cannot read" in fails(capsys, 2, "--url", daemon.url, "--token-file", missing, "status")


@pytest.mark.parametrize("command", ["status", "slots", "tier", "regions", "sessions", "passes", "flush"])
@pytest.mark.parametrize("body", [b"[]", b'{"models": 3}'])
def test_json_of_another_shape_is_one_line(
    command: str, body: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + body)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # a close with bytes unread would reset the connection
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        code = main(["ctl", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}", command])
        thread.join()
    error = capsys.readouterr().err
    assert code == 1
    assert "sent JSON of another shape; is it tierd?" in error
    assert error.count("\n") == 1
