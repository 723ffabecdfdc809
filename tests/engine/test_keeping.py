"""What an engine knows of conversations after a restart. Whoever gets wrong rows gets wrong tokens."""

from __future__ import annotations

import errno
import logging
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import pytest

from engine.device_slot import device_slot
from engine.drive import greedy, run
from engine.harness import NULL, PATIENCE, Gate, Harness, model, running
from engine.null_slot import null_slot, request
from engine.null_stage import NullStage, seated_slot
from tierd.backends.null import NullExecutor
from tierd.core import FinishedEvent
from tierd.engine.messages import Message
from tierd.engine.operation import Operation
from tierd.errors import DeviceMemoryError, StateError, UnavailableError
from tierd.kv import row_files
from tierd.kv.bank import Bank
from tierd.kv.openings import pack
from tierd.kv.origin import origin_of
from tierd.kv.row_files import Header, read_header
from tierd.kv.spill import Spill
from tierd.settings import ModelSettings, Settings, StateSettings
from tierd.slot import Slot
from tierd.tier.status import TierStatus

ORIGIN = origin_of("0" * 64, "f16", "cpu avx2")
ROOM = 1 << 16
POSITIONS = 200

Opens = Callable[[ModelSettings, Bank], Slot]


def on_host(settings: ModelSettings, bank: Bank) -> Slot:
    return null_slot(settings, pages=POSITIONS, bank=bank, origin=ORIGIN)


def on_device(settings: ModelSettings, bank: Bank) -> Slot:
    return device_slot(settings, regions=2, positions=POSITIONS, bank=bank)


@pytest.fixture(params=[on_host, on_device], ids=["host", "device"])
def opens(request: pytest.FixtureRequest) -> Opens:
    """What opens a model in either place. Longer conversations than those of `place`, in fewer regions."""
    opens: Opens = request.param
    return opens


@dataclass
class Served:
    """opens: models that are loaded from now on."""

    harness: Harness
    bank: Bank
    opens: Opens
    asked: int = 0

    def ask(self, prompt: list[int], answer: int = 6) -> tuple[list[int], int]:
        """Return a prompt with its answer, which is right, and how much of it was known."""
        self.asked += 1
        asked = request(f"r{self.asked}", prompt, answer)
        self.harness.engine.submit(asked)
        end = self.harness.mail.terminal(asked.id)
        assert isinstance(end, FinishedEvent)
        tokens = greedy(prompt, answer)
        said = bytes(token for token in tokens[len(prompt) :] if token < 256)
        assert self.harness.mail.text(asked.id) == said.decode("utf-8", "replace")
        return tokens, end.usage.cached_tokens


@contextmanager
def daemon(
    folder: Path,
    opens: Opens = on_host,
    *,
    models: tuple[ModelSettings, ...] = (NULL,),
    room: int = ROOM,
    limit: int = 1 << 62,
    tier: Callable[[], TierStatus] = TierStatus,
    **state: float,
) -> Iterator[Served]:
    """Run an engine over what lies in the folder. room: bytes of its bank."""
    inbox: SimpleQueue[Message] = SimpleQueue()
    spill = Spill(folder, inbox.put, limit)
    bank = Bank(room, spill=spill)
    settings = Settings(state=StateSettings(dir=folder, **state))
    with running(
        open_slot=lambda model: served.opens(model, bank),
        settings=settings,
        engine={"bank": bank, "inbox": inbox, "tier": tier},
    ) as harness:
        served = Served(harness, bank, opens)
        harness.load(*models)
        yield served
    assert spill.close(PATIENCE)


def prompt(index: int, length: int = 30) -> list[int]:
    return [index, *((7 * index + at) % 250 for at in range(length - 1))]


def files(folder: Path) -> dict[Path, Header]:
    return {path: read_header(path) for path in folder.glob("*.rows")}


def test_conversations_go_on_as_if_nothing_had_been(tmp_path: Path, opens: Opens) -> None:
    """More of them than there are regions, some of one opening; over three lives."""
    asked = [prompt(1), prompt(2), [*prompt(1, 20), 5, 5], prompt(3, 60)]
    with daemon(tmp_path / "never", opens) as served:
        expected = []
        talks = asked
        for turn in range(3):
            answers = [served.ask(talk) for talk in talks]
            expected.append(answers)
            talks = [[*tokens, turn, 9] for tokens, _ in answers]
    talks = asked
    for turn in range(3):
        with daemon(tmp_path / "state", opens) as served:
            answers = [served.ask(talk) for talk in talks]
            assert answers == expected[turn]
            talks = [[*tokens, turn, 9] for tokens, _ in answers]
    assert {header.tokens for header in files(tmp_path / "state").values()} == {
        pack(tokens[:-1]) for tokens, _ in answers
    }


def test_what_is_shared_is_brought_once(tmp_path: Path) -> None:
    """Whole pages that a stream finds are used; of the bank comes what lies behind them."""
    with daemon(tmp_path) as served:
        served.ask(prompt(1, 50))
    with daemon(tmp_path) as served:
        assert served.ask(prompt(1, 18))[1] == 17
        assert served.ask(prompt(1, 50))[1] == 49
        room = served.harness.snapshot_when(lambda snapshot: served.harness.rests()).models["null"]
        assert room.pages_cached == 16  # 14 of the longer one, and two of the other behind the 4 they share


def test_a_model_that_keeps_nothing_finds_nothing(tmp_path: Path) -> None:
    with daemon(tmp_path) as served:
        served.ask(prompt(1))
    with daemon(
        tmp_path, lambda model, bank: null_slot(model, prefix_cache=False, bank=bank, origin=ORIGIN)
    ) as served:
        assert served.ask(prompt(1))[1] == 0


def test_a_flush_forgets_files_as_well(tmp_path: Path, opens: Opens) -> None:
    with daemon(tmp_path, opens) as served:
        served.ask(prompt(1))
    with daemon(tmp_path, opens) as served:
        served.harness.engine.flush().result(PATIENCE)
        assert files(tmp_path) == {}
        assert served.ask(prompt(1))[1] == 0
        served.harness.engine.drain().result(PATIENCE)
        assert len(files(tmp_path)) == 1
        served.harness.engine.flush().result(PATIENCE)
        assert files(tmp_path) == {}
    assert files(tmp_path) == {}


def test_a_flush_is_done_once_what_was_being_written_is_gone(
    tmp_path: Path, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, go_on, write = Event(), Event(), row_files.write

    def slowly(*what: Any) -> None:
        at_work.set()
        assert go_on.wait(PATIENCE)
        write(*what)

    monkeypatch.setattr(row_files, "write", slowly)
    with daemon(tmp_path, opens, interval_s=0.01) as served:
        served.ask(prompt(1))
        assert at_work.wait(PATIENCE)
        freed = served.harness.engine.flush()
        with pytest.raises(NotYet):
            freed.result(0.05)
        go_on.set()
        freed.result(PATIENCE)
        assert files(tmp_path) == {}


def test_a_model_that_is_unloaded_has_no_file_left(tmp_path: Path, opens: Opens) -> None:
    with daemon(tmp_path, opens) as served:
        served.ask(prompt(1))
        served.harness.engine.drain().result(PATIENCE)
        assert len(files(tmp_path)) == 1
        served.harness.engine.unload("null").result(PATIENCE)
        assert files(tmp_path) == {}


def test_files_that_cannot_be_removed_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "remove", lambda path: f"cannot remove {path}: no luck")
    with daemon(tmp_path) as served:
        served.ask(prompt(1))
        served.harness.engine.drain().result(PATIENCE)
        (path,) = files(tmp_path)
        told = f"state.dir: cannot remove {path}: no luck; remove what lies there by hand"
        assert str(served.harness.engine.flush().exception(PATIENCE)) == told
        assert served.harness.engine.flush().exception(PATIENCE) is None


def test_a_flush_of_one_model_leaves_what_is_being_saved_of_another(
    tmp_path: Path, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, go_on, read = Event(), Event(), NullExecutor.read_rows

    def slowly(*what: Any) -> None:
        at_work.set()
        assert go_on.wait(PATIENCE)
        read(*what)

    monkeypatch.setattr(NullExecutor, "read_rows", slowly)
    with daemon(tmp_path, opens) as served:
        served.harness.load(model("other"))
        served.ask(prompt(1))
        drained = served.harness.engine.drain()
        assert at_work.wait(PATIENCE)
        served.harness.engine.flush("other").result(PATIENCE)
        go_on.set()
        drained.result(PATIENCE)
        assert [header.tokens[0] for header in files(tmp_path).values()] == [1]
        at_work.clear()
        go_on.clear()
        served.harness.engine.resume().result(PATIENCE)
        served.ask(prompt(2))
        drained = served.harness.engine.drain()
        assert at_work.wait(PATIENCE)
        freed = served.harness.engine.flush("null")
        served.harness.snapshot_when(lambda _: not (tmp_path / "0.rows").exists())
        go_on.set()
        freed.result(PATIENCE)
        drained.result(PATIENCE)
    assert files(tmp_path) == {}


def test_a_load_that_fails_leaves_the_files_that_were_there(tmp_path: Path) -> None:
    """Those too that it could not have used, with the settings that it had."""
    stage = NullStage(10)

    def seated(settings: ModelSettings, bank: Bank) -> Slot:
        there = not stage.reservations.held
        return seated_slot(settings, stage, size=10, on=there, bank=bank, regions=2, positions=POSITIONS)

    def other_layers(settings: ModelSettings, bank: Bank) -> Slot:
        slot = seated(settings, bank)
        slot.home.executor.row_bytes = (4, 4)  # type: ignore[misc]
        return slot

    with daemon(tmp_path, on_device) as served:
        served.ask(prompt(1))
    kept = files(tmp_path)
    assert len(kept) == 1
    with daemon(tmp_path, seated, models=(model("owner"),), tier=stage.status) as served:
        for opens in (seated, other_layers):
            served.opens = opens
            stage.broken = [DeviceMemoryError("in pieces")]
            with pytest.raises(DeviceMemoryError):
                served.harness.engine.load(NULL, activate=True).result(PATIENCE)
            assert files(tmp_path) == kept
        served.opens = seated
        served.harness.engine.load(NULL, activate=True).result(PATIENCE)
        assert served.ask(prompt(1))[1] == 29


def test_by_interval_all_is_written_while_it_serves(tmp_path: Path, opens: Opens) -> None:
    with daemon(tmp_path, opens, interval_s=0.02) as served:
        said = [served.ask(prompt(index))[0] for index in range(4)]
        served.harness.snapshot_when(lambda _: len(files(tmp_path)) == 4)
        assert {header.tokens for header in files(tmp_path).values()} == {pack(each[:-1]) for each in said}
        longer, known = served.ask([*said[0], 3, 4])
        assert known == len(said[0]) - 1
        served.harness.snapshot_when(
            lambda _: pack(longer[:-1]) in {header.tokens for header in files(tmp_path).values()}
        )
        served.harness.snapshot_when(lambda _: len(files(tmp_path)) == 4)  # in place of what it goes on from


def test_without_an_interval_nothing_is_written_before_the_end(tmp_path: Path, opens: Opens) -> None:
    with daemon(tmp_path, opens) as served:
        served.ask(prompt(1))
        assert files(tmp_path) == {}
    assert len(files(tmp_path)) == 1


def test_a_drain_is_done_once_all_is_written(tmp_path: Path, opens: Opens) -> None:
    with daemon(tmp_path, opens) as served:
        for index in range(3):
            served.ask(prompt(index))
        operation = Operation("drain")
        drained = served.harness.engine.drain(operation)
        operation.follow(drained)
        drained.result(PATIENCE)
        assert len(files(tmp_path)) == 3
        assert [phase.name for phase in operation.view.phases] == ["wait", "write"]
        assert operation.view.done == operation.view.total == 3
        served.harness.engine.resume().result(PATIENCE)
        assert served.ask(prompt(1))[1] == 29


def test_what_a_drain_has_written_is_not_written_again(
    tmp_path: Path, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write = [], row_files.write

    def counted(path: Path, *what: Any) -> None:
        written.append(path)
        write(path, *what)

    monkeypatch.setattr(row_files, "write", counted)
    with daemon(tmp_path, opens) as served:
        for index in range(3):
            served.ask(prompt(index))
        for _ in range(2):
            served.harness.engine.drain().result(PATIENCE)
    assert set(written) == files(tmp_path).keys()
    assert len(written) == 3


def test_a_drain_waits_no_longer_than_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, write = Event(), row_files.write

    def slowly(*what: Any) -> None:
        assert go_on.wait(PATIENCE)
        write(*what)

    monkeypatch.setattr(row_files, "write", slowly)
    with daemon(tmp_path, save_s=0.05) as served:
        served.ask(prompt(1))
        late = "^state.dir: not all conversations were written within state.save_s = 0.05 s"
        with pytest.raises(StateError, match=late):
            served.harness.engine.drain().result(PATIENCE)
        go_on.set()
        served.harness.snapshot_when(lambda _: len(files(tmp_path)) == 1)
        served.harness.engine.drain().result(PATIENCE)


def test_a_drain_tells_of_what_could_not_be_written(
    tmp_path: Path, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = row_files.write

    def badly(path: Path, *what: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with daemon(tmp_path, opens) as served:
        served.ask(prompt(1))
        monkeypatch.setattr(row_files, "write", badly)
        told = f"state.dir: cannot write {tmp_path / '0.rows'}: Read-only file system"
        assert str(served.harness.engine.drain().exception(PATIENCE)) == told
        monkeypatch.setattr(row_files, "write", write)
        served.harness.engine.drain().result(PATIENCE)
        assert len(files(tmp_path)) == 1


def test_a_drain_that_is_called_off_leaves_the_next_one_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work, go_on, write = Event(), Event(), row_files.write

    def slowly(*what: Any) -> None:
        at_work.set()
        assert go_on.wait(PATIENCE)
        write(*what)

    monkeypatch.setattr(row_files, "write", slowly)
    with daemon(tmp_path) as served:
        served.ask(prompt(1))
        drained = served.harness.engine.drain()
        assert at_work.wait(PATIENCE)
        served.harness.engine.resume().result(PATIENCE)
        with pytest.raises(UnavailableError, match="called off"):
            drained.result(PATIENCE)
        go_on.set()
        served.ask(prompt(2))
        served.harness.engine.drain().result(PATIENCE)
        assert len(files(tmp_path)) == 2


def test_the_latest_are_kept_where_there_is_no_room_for_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with daemon(tmp_path / "one") as served:
        served.ask(prompt(1))
    (size,) = (path.stat().st_size for path in files(tmp_path / "one"))
    caplog.clear()
    with daemon(tmp_path / "state", limit=2 * size + 20) as served:
        for index in range(5):
            served.ask(prompt(index))
    kept = {header.tokens[0] for header in files(tmp_path / "state").values()}
    assert kept == {3, 4}
    assert "state.dir: no room for 3 conversations; see state.max_mb and kv.bank_mb" in caplog.text


def test_what_the_bank_never_has_room_for_is_not_kept(
    tmp_path: Path, opens: Opens, caplog: pytest.LogCaptureFixture
) -> None:
    with daemon(tmp_path, opens, room=8 * 40) as served:
        served.ask(prompt(1, 50))
        served.ask(prompt(2))
    assert [header.tokens[0] for header in files(tmp_path).values()] == [2]
    assert "state.dir: no room for 1 conversations" in caplog.text


def test_the_end_waits_no_longer_than_the_settings_say(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with daemon(tmp_path, save_s=0.0) as served:
        served.ask(prompt(1))
    assert files(tmp_path) == {}
    assert "not all conversations were written within state.save_s = 0 s" in caplog.text


def test_what_does_not_end_keeps_nothing_of_others_from_being_written(tmp_path: Path) -> None:
    gate, opening, go_on = Gate(), Event(), Event()

    def open_slot(settings: ModelSettings, bank: Bank) -> Slot:
        if settings.id == "slow":
            opening.set()
            assert go_on.wait(PATIENCE)
        hangs = settings.id == "hung"
        device, before_step = ("gpu", gate) if hangs else ("cpu", None)
        return null_slot(
            settings, device=device, pages=POSITIONS, bank=bank, origin=ORIGIN, before_step=before_step
        )

    with daemon(tmp_path, open_slot, models=(model("hung"), NULL)) as served:
        engine = served.harness.engine
        engine.submit(request("first", prompt(9), 1, model="hung"))
        gate.let(2)
        served.harness.mail.terminal("first")
        served.ask(prompt(1))
        served.ask(prompt(2))
        loaded = engine.load(model("slow"))
        assert opening.wait(PATIENCE)
        engine.submit(request("second", prompt(8), 40, model="hung"))
        for _ in range(3):
            gate.wait()
        stopping = Thread(target=engine.stop, args=(PATIENCE,))
        stopping.start()
        served.harness.snapshot_when(lambda _: len(files(tmp_path)) == 2)
        assert {header.model for header in files(tmp_path).values()} == {"null"}
        assert not loaded.done()
        go_on.set()
        gate.let()
        stopping.join(PATIENCE)
    assert {header.tokens[0] for header in files(tmp_path).values()} >= {1, 2, 9}


def test_without_a_folder_nothing_is_kept() -> None:
    with running(NULL, settings=Settings(state=StateSettings(interval_s=0.01))) as harness:
        harness.engine.submit(request("r"))
        harness.mail.terminal("r")


def test_rows_that_others_get_meanwhile_are_not_kept() -> None:
    """Nothing holds the pages of a conversation that is being written."""
    slot = null_slot(NULL, pages=10)
    run(slot, request("first", prompt(1), 1))
    parked = slot.home.next_to_save()
    assert parked is not None
    assert parked.tokens.content == pack(prompt(1))
    assert parked.stands()
    assert slot.home.next_to_save() is None
    run(slot, request("second", prompt(2, 20), 1))
    assert not parked.stands()


def test_a_region_that_goes_on_meanwhile_is_not_kept() -> None:
    slot = device_slot(NULL)
    run(slot, request("first", prompt(1), 1))
    parked = slot.home.next_to_save()
    assert parked is not None
    assert parked.stands()
    run(slot, request("second", [*prompt(1), 5], 1))
    assert not parked.stands()
    again = slot.home.next_to_save()
    assert again is not None
    assert again.tokens.content == pack([*prompt(1), 5])


def cut(at: float) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: int(at * len(content))])

    return harm


def flipped(at: float) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(at * (len(content) - 1))] ^= 16
        path.write_bytes(content)

    return harm


def told(**other: object) -> Callable[[Path], None]:
    """Return what lets the header say something else, with good checksums."""

    def harm(path: Path) -> None:
        header = read_header(path)
        parts = {"model": header.model, "origin": header.origin, "row_bytes": header.row_bytes}
        content = path.read_bytes()[len(header.pack()) : -4]
        forged = Header(tokens=header.tokens, used=header.used, **parts | other).pack() + content  # type: ignore[arg-type]
        path.write_bytes(forged + zlib.crc32(forged).to_bytes(4, "little"))

    return harm


def replaced(before: bytes, after: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes().replace(before, after, 1)) and None


HARMS = {
    **{f"cut at {at} %": cut(at / 100) for at in range(0, 100, 6)},
    **{f"flipped at {at} %": flipped(at / 100) for at in range(0, 101, 5)},
    "one byte longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "an older version": replaced(b"tierd rows 3", b"tierd rows 1"),
    "a newer version": replaced(b"tierd rows 3", b"tierd rows 9"),
    "something else": lambda path: path.write_bytes(b"GGUF" * 100),
    "another model file": told(origin=origin_of("1" * 64, "f16", "cpu avx2")),
    "another codec": told(origin=origin_of("0" * 64, "q8_0", "cpu avx2")),
    "another tierd": told(origin=ORIGIN.replace("tierd ", "tierd 7.")),
    "another level": told(origin=origin_of("0" * 64, "f16", "cpu portable")),
    "a device": told(origin=origin_of("0" * 64, "f16", "llvmpipe")),
    "no origin": told(origin=""),
    "other layers": told(row_bytes=(4, 4)),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a link": lambda path: (
        path.rename(path.with_suffix(".away")) and path.symlink_to(path.with_suffix(".away"))
    ),
}


def test_there_are_fifty_harms() -> None:
    assert len(HARMS) >= 50


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A good file of a conversation."""
    folder = tmp_path_factory.mktemp("sound")
    with daemon(folder) as served:
        served.ask(prompt(1))
    (path,) = files(folder)
    return path.read_bytes()


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_damaged_or_foreign_file_is_ignored_with_a_line_in_the_log(
    tmp_path: Path, sound: bytes, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """What is asked is answered as if the file had never been; the next process has no trouble either."""
    path = tmp_path / "0.rows"
    path.write_bytes(sound)
    harm(path)
    with daemon(tmp_path) as served:
        assert served.ask(prompt(1))[1] == 0
        assert served.ask(prompt(1))[1] == 29
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    caplog.clear()
    with daemon(tmp_path) as served:
        assert served.ask(prompt(1))[1] == 29


def test_a_sound_file_is_used(tmp_path: Path, sound: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "0.rows").write_bytes(sound)
    with daemon(tmp_path) as served:
        assert served.ask(prompt(1))[1] == 29
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
