"""What a program beside the daemon answers, what it may take, and how it dies. This one renders templates."""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import children
from tierd.chat import confined
from tierd.chat.confined import Confined, ConfinedError

WORKER = "tierd.chat.template_worker"
MEMORY = 256 << 20
SETUP: dict[str, Any] = {"memory": MEMORY, "seconds": 0.3, "globals": {}, "characters": 1000}
# Says a text; fails with it; counts so far; makes one of so many letters.
TEMPLATE = """{% if fails %}{{ raise_exception(fails) }}{% endif %}
{% for a in range(count or 0) %}{% for b in range(count) %}{% endfor %}{% endfor %}
{{ ("x" * (letters or 0)) | length }} {{ text }}"""


def begin(template: str = TEMPLATE, **setup: object) -> Confined:
    return Confined(WORKER, SETUP | {"template": template} | setup)


@pytest.fixture
def program() -> Iterator[Confined]:
    begun = begin()
    yield begun
    begun.end()


@pytest.fixture(scope="module")
def shared() -> Iterator[Confined]:
    """One that nothing here kills."""
    begun = begin()
    yield begun
    begun.end()
    assert not begun.alive


def started(before: set[str]) -> int:
    """Return the id of the process that was started since."""
    (id,) = children() - before
    return int(id)


def answer(program: Confined, **message: object) -> str:
    return program.ask(message).strip()


def complaint(program: Confined, **message: object) -> str:
    with pytest.raises(ConfinedError) as caught:
        program.ask(message)
    return str(caught.value)


def test_messages_are_answered_in_turn(shared: Confined) -> None:
    assert shared.told == '["count", "fails", "letters", "text"]'
    for text in ("", "a\nb", "é 好 😀", "\ud83d", "x" * 900):
        assert answer(shared, text=text) == f"0 {text}".strip()


def test_what_is_wrong_is_told_in_one_line_and_the_next_message_answered(shared: Confined) -> None:
    assert complaint(shared, fails="Roles must\n  alternate") == "Roles must alternate"
    assert complaint(shared, letters=10**10) == "it needs too much memory"
    assert complaint(shared, text="x" * 1000) == "the text it makes is too long"
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert complaint(shared, text=nested) == "what it is given is nested too deeply"
    assert answer(shared, text="on") == "0 on"


def test_signals_for_the_daemon_do_not_end_it() -> None:
    before = children()
    program = begin()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(started(before), number)
    assert answer(program, text="on") == "0 on"
    program.end()


def test_it_gives_up_what_it_needs_none_of() -> None:
    before = children()
    program = begin()
    process = Path("/proc", str(started(before)))
    limits = {
        line[:26].strip(): line[26:47].split()[0] for line in (process / "limits").read_text().splitlines()
    }
    assert limits["Max address space"] == str(MEMORY)
    for nothing in ("Max core file size", "Max file size", "Max processes"):
        assert limits[nothing] == "0"
    mine = resource.getrlimit(resource.RLIMIT_STACK)[0]
    assert limits["Max stack size"] == str(1 << 20 if mine == resource.RLIM_INFINITY else mine // 2)
    given = (process / "environ").read_bytes().split(b"\0")
    assert {line.partition(b"=")[0] for line in given if line} <= {b"TZ", b"LD_LIBRARY_PATH"}
    program.end()


def test_time_is_bounded_for_each_message_alone(program: Confined) -> None:
    for _ in range(8):
        assert answer(program, count=900) == "0"
    assert complaint(program, count=99_999) == "it takes too much time"
    assert not program.alive


def test_one_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits takes none of the processor's time."""
    before = children()
    stopped = begin()
    monkeypatch.setattr(confined, "PATIENCE_SECONDS", 0.1)
    os.kill(id := started(before), signal.SIGSTOP)
    assert complaint(stopped, text="a") == "it takes too much time"
    assert not stopped.alive
    assert str(id) not in children()


DEATHS = {
    signal.SIGABRT: "it needs too much memory",
    signal.SIGSEGV: "it is nested too deeply",
    signal.SIGBUS: f"its process ended with status -{signal.SIGBUS:d}",
}


@pytest.mark.parametrize("number", DEATHS)
def test_what_it_died_of_is_told(number: signal.Signals) -> None:
    before = children()
    program = begin()
    os.kill(id := started(before), number)
    assert complaint(program, text="a") == DEATHS[number]
    assert not program.alive
    assert str(id) not in children()


def test_one_that_cannot_be_set_up_leaves_nothing_behind() -> None:
    gc.collect()
    before = children()
    for template, wrong in (("{% if %}", "line 1: Expected an expression"), ("{{ 1", "unexpected end")):
        with pytest.raises(ConfinedError, match=wrong):
            begin(template)
    with pytest.raises(ConfinedError, match="its process ended with status 1"):
        Confined("tierd.chat.there_is_none", SETUP)
    gc.collect()
    assert not children() - before


def test_it_goes_with_its_object(program: Confined) -> None:
    gc.collect()
    before = children()
    other = begin()
    assert other.alive
    del other
    gc.collect()
    assert not children() - before
    assert answer(program, text="on") == "0 on"


def test_one_that_is_asked_can_be_killed() -> None:
    program = begin(seconds=60)
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(complaint(program, count=99_999)))
    thread.start()
    program.kill()
    thread.join()
    assert told == ["it takes too much time"]
    assert not program.alive
    program.end()
