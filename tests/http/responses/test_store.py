from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tierd.http.responses.store import OVERHEAD, Kept, ResponsesStore

OWNERS = ("", "key")
IDS = ("a", "b", "c", "d")


def kept(id: str, size: int = 0) -> Kept:
    return Kept(id, b"r" * size, b"")


def test_the_oldest_make_room_for_the_newest() -> None:
    store = ResponsesStore(2, 10 * OVERHEAD)
    for id in "abc":
        store.put("", kept(id))
    assert [store.find("", id) for id in "abc"] == [None, kept("b"), kept("c")]
    store.put("", kept("b", 1))
    store.put("", kept("d"))
    assert [store.find("", id) for id in "bcd"] == [kept("b", 1), None, kept("d")]


def test_bytes_are_bounded_too() -> None:
    store = ResponsesStore(10, 3 * OVERHEAD)
    store.put("", kept("a"))
    store.put("", kept("b", OVERHEAD))
    assert len(store) == 2
    store.put("", kept("c", 2 * OVERHEAD + 1))
    assert len(store) == 2
    store.put("", kept("d", 2 * OVERHEAD))
    assert (len(store), store.size) == (1, 3 * OVERHEAD)


def test_no_owner_sees_what_is_another_ones() -> None:
    store = ResponsesStore(10, 10 * OVERHEAD)
    store.put("mine", kept("a"))
    assert store.find("", "a") is None
    assert not store.remove("yours", "a")
    assert store.remove("mine", "a")
    assert store.find("mine", "a") is None
    assert store.size == 0


def test_nothing_is_kept_where_there_is_no_room() -> None:
    for store in (ResponsesStore(0, 10 * OVERHEAD), ResponsesStore(10, 0)):
        store.put("", kept("a"))
        assert len(store) == store.size == 0


@given(
    st.integers(0, 4),
    st.integers(0, 6),
    st.lists(
        st.tuples(st.booleans(), st.sampled_from(OWNERS), st.sampled_from(IDS), st.integers(0, 3)),
        max_size=30,
    ),
)
def test_it_holds_its_bounds_and_what_came_last(
    capacity: int, room: int, calls: list[tuple[bool, str, str, int]]
) -> None:
    store = ResponsesStore(capacity, room * OVERHEAD)
    model: list[tuple[str, Kept]] = []
    for puts, owner, id, size in calls:
        one = kept(id, size * OVERHEAD)
        fits = not puts or one.size <= room * OVERHEAD
        if puts:
            store.put(owner, one)
        else:
            assert store.remove(owner, id) == any((who, it.id) == (owner, id) for who, it in model)
        if fits:
            model = [(who, it) for who, it in model if (who, it.id) != (owner, id)]
        if puts and fits:
            model.append((owner, one))
        while len(model) > capacity or sum(it.size for _, it in model) > room * OVERHEAD:
            del model[0]
        assert store.size == sum(it.size for _, it in model)
        assert len(store) == len(model)
        for who in OWNERS:
            for name in IDS:
                expected = next((it for whose, it in model if (whose, it.id) == (who, name)), None)
                assert store.find(who, name) == expected
