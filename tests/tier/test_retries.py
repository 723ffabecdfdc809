from __future__ import annotations

from tierd.tier.retries import HEALTHY_S, LONGEST_S, TRIES, Retries


def waits(retries: Retries, now: float) -> list[float]:
    """Return how long is waited before each try when all are in vain."""
    found: list[float] = []
    while retries.due is not None:
        found.append(retries.due - now)
        now = retries.due
        retries.failed(now)
    return found


def test_a_device_that_works_is_not_tried() -> None:
    assert (Retries().due, Retries().faults) == (None, 0)


def test_tries_come_ever_later_and_end() -> None:
    retries = Retries()
    retries.fault(100.0)
    found = waits(retries, 100.0)
    assert found == [1, 2, 4, 8, 16, 32, LONGEST_S, LONGEST_S]
    assert len(found) == TRIES
    assert retries.faults == 1


def test_a_device_that_fails_again_soon_goes_on_where_it_was() -> None:
    retries = Retries()
    for number in range(TRIES):
        now = number * (HEALTHY_S - 1)
        retries.fault(now)
        assert retries.due == now + min(2**number, LONGEST_S)
        retries.succeeded(now)
        assert retries.due is None
    retries.fault(now + HEALTHY_S - 1)
    assert retries.due is None
    assert retries.faults == TRIES + 1


def test_a_device_that_has_worked_for_long_has_all_its_tries_again() -> None:
    retries = Retries()
    retries.fault(0.0)
    retries.failed(1.0)
    retries.succeeded(3.0)
    retries.fault(3.0 + HEALTHY_S)
    assert retries.due == 4.0 + HEALTHY_S
