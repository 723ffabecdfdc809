from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future

import pytest

from tierd.engine.operation import DONE, FAILED, RUNNING, Operation, PhaseView
from tierd.errors import ModelFileError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def operation(clock: Clock) -> Operation:
    return Operation("load", "a", clock=clock)


def test_one_that_has_just_begun(operation: Operation, clock: Clock) -> None:
    clock.now += 2.5
    view = operation.view
    assert (view.id, view.kind, view.model) == (operation.id, "load", "a")
    assert (view.state, view.phase, view.phases, view.error) == (RUNNING, "", (), "")
    assert (view.done, view.total, view.seconds) == (0, 0, 2.5)
    assert view.created > 1.7e9
    assert not operation.ended


def test_names_differ() -> None:
    assert len({Operation("load", "a").id for _ in range(100)}) == 100


def test_phases_follow_each_other_and_end_with_it(operation: Operation, clock: Clock) -> None:
    clock.now += 1
    operation.enter("open")
    clock.now += 2
    operation.progress(3, 10)
    assert (operation.view.phase, operation.view.done, operation.view.total) == ("open", 3, 10)
    operation.enter("upload")
    assert (operation.view.phase, operation.view.done, operation.view.total) == ("upload", 0, 0)
    clock.now += 0.5
    operation.finish()
    clock.now += 60
    view = operation.view
    assert operation.ended
    assert (view.state, view.phase, view.seconds) == (DONE, "", 3.5)
    assert view.phases == (PhaseView("open", 2.0), PhaseView("upload", 0.5))


def test_one_that_fails_says_why(operation: Operation) -> None:
    operation.enter("open")
    operation.fail(ModelFileError("a: the file is cut short"))
    assert (operation.view.state, operation.view.error) == (FAILED, "a: the file is cut short")
    assert [phase.name for phase in operation.view.phases] == ["open"]


def test_a_fault_is_named_by_its_kind(operation: Operation) -> None:
    operation.fail(ZeroDivisionError("by zero"))
    assert operation.view.error == "ZeroDivisionError: by zero"


def test_one_that_has_failed_keeps_nothing_of_what_was_at_work(operation: Operation) -> None:
    class Large:
        pass

    def load() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        try:
            raise KeyError("a tensor")
        except KeyError as error:
            raise ModelFileError("a: a tensor is missing") from error

    kept: list[weakref.ref[Large]] = []
    future: Future[None] = Future()
    operation.follow(future)
    try:
        load()
    except ModelFileError as error:
        future.set_exception(error)
    assert operation.view.error == "a: a tensor is missing"
    assert kept[0]() is None


def test_the_first_end_counts(operation: Operation, clock: Clock) -> None:
    operation.finish()
    before = operation.view
    clock.now += 1
    operation.fail(ModelFileError("late"))
    operation.finish()
    operation.enter("late")
    operation.progress(1, 2)
    assert operation.view == before


def test_it_ends_as_a_future_does() -> None:
    good, bad = Operation("load", "a"), Operation("load", "b")
    done: Future[int] = Future()
    failed: Future[int] = Future()
    good.follow(done)
    bad.follow(failed)
    assert (good.view.state, bad.view.state) == (RUNNING, RUNNING)
    done.set_result(1)
    failed.set_exception(ModelFileError("no"))
    assert (good.view.state, bad.view.state, bad.view.error) == (DONE, FAILED, "no")


def test_watchers_hear_of_each_change_and_of_nothing_else(operation: Operation) -> None:
    heard: list[tuple[str, int, str]] = []

    def note() -> None:
        view = operation.view
        heard.append((view.phase, view.done, view.state))

    operation.watch(note)
    operation.watch(leaver := lambda: operation.unwatch(leaver))
    operation.enter("open")
    operation.progress(1, 2)
    operation.progress(1, 2)
    operation.progress(2, 2)
    operation.finish()
    operation.finish()
    assert heard == [
        ("open", 0, RUNNING),
        ("open", 1, RUNNING),
        ("open", 2, RUNNING),
        ("", 2, DONE),
    ]
    operation.unwatch(note)


def test_threads_may_tell_of_it_while_others_ask() -> None:
    operation = Operation("load", "a")

    def work(name: str) -> None:
        for i in range(200):
            operation.enter(f"{name}{i}")
            operation.progress(i, 200)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert operation.view.done <= operation.view.total or operation.view.total == 0
    operation.finish()
    names = [phase.name for phase in operation.view.phases]
    assert sorted(names) == sorted(f"{name}{i}" for name in "ab" for i in range(200))
