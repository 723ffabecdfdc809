from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierd.errors import ModelError, SettingsError
from tierd.kv.sizing import (
    MOST_PAGES,
    PromisedMemory,
    available_memory,
    bank_limit,
    cgroup_memory,
    memory_budget,
    pages_for,
    size_cache,
)
from tierd.settings import KVSettings

MODEL = {"trained": 1000, "streams": 4, "page_positions": 64, "page_bytes": 1024}


def test_pages_are_rounded_up() -> None:
    assert [pages_for(positions, 64) for positions in (0, 1, 64, 65)] == [0, 1, 1, 2]


def test_with_enough_memory_every_stream_has_the_trained_context() -> None:
    size = size_cache(**MODEL, asked=0, budget=1 << 30)
    assert (size.context, size.pages) == (1000, 4 * 16)


def test_memory_bounds_the_pages_first_and_then_the_context() -> None:
    size = size_cache(**MODEL, asked=0, budget=20 * 1024)
    assert (size.context, size.pages) == (1000, 20)
    size = size_cache(**MODEL, asked=0, budget=10 * 1024 + 1023)
    assert (size.context, size.pages) == (640, 10)


def test_a_context_that_was_asked_for_is_kept_or_refused() -> None:
    assert size_cache(**MODEL, asked=100, budget=1 << 30).pages == 8
    assert size_cache(**MODEL, asked=640, budget=10 * 1024).context == 640
    with pytest.raises(ModelError, match=r"641 positions needs 0\.0 MiB"):
        size_cache(**MODEL, asked=641, budget=10 * 1024)
    with pytest.raises(SettingsError, match="context = 1001 is more than the 1000 positions"):
        size_cache(**MODEL, asked=1001, budget=1 << 30)


def test_memory_for_less_than_a_page_is_refused() -> None:
    with pytest.raises(ModelError, match=r"one stream of 64 positions .* raise kv\.memory_mb"):
        size_cache(**MODEL, asked=0, budget=1023)


def test_a_boundless_context_of_tiny_pages_gets_a_bounded_number_of_them() -> None:
    size = size_cache(
        trained=2**31 - 1, asked=0, streams=1024, page_positions=64, page_bytes=64, budget=1 << 50
    )
    assert (size.context, size.pages) == (64 * MOST_PAGES, MOST_PAGES)


@given(
    trained=st.integers(1, 5000),
    asked=st.integers(0, 5000),
    streams=st.integers(1, 9),
    page_positions=st.integers(1, 70),
    budget=st.integers(0, 500),
)
def test_one_stream_always_fits(
    trained: int, asked: int, streams: int, page_positions: int, budget: int
) -> None:
    try:
        size = size_cache(
            trained=trained,
            asked=asked,
            streams=streams,
            page_positions=page_positions,
            page_bytes=3,
            budget=3 * budget,
        )
    except (ModelError, SettingsError):
        assert asked > trained or pages_for(asked or 1, page_positions) > budget
    else:
        assert 1 <= size.context <= trained
        assert pages_for(size.context, page_positions) <= size.pages <= budget


def test_models_share_the_memory_alike() -> None:
    assert memory_budget(300, 3) == 100 << 20
    half = memory_budget(0, 1)
    assert 0 < half < available_memory()


def test_the_bank_takes_what_the_setting_says_or_a_quarter() -> None:
    assert bank_limit(KVSettings(bank_mb=7)) == 7 << 20
    assert 0 < bank_limit(KVSettings()) < available_memory() // 2


def test_working_memory_is_not_free_for_pages() -> None:
    assert memory_budget(300, 3, working=1 << 60) == 100 << 20
    assert memory_budget(0, 1, working=1 << 60) == 0


def test_pools_are_promised_together() -> None:
    promised = PromisedMemory()
    promised.promise("a", 30 << 20, 10 << 20, 100 << 20)
    with pytest.raises(
        ModelError,
        match=r"^its K/V pool of 60\.0 MiB and 1\.0 MiB of weights and buffers are more than the 100\.0 MiB "
        r"of memory that are free, 40\.0 MiB are promised to other models; "
        r"lower kv\.memory_mb, context or streams$",
    ):
        promised.promise("b", 60 << 20, 1 << 20, 100 << 20)
    promised.settle("a", 30 << 20)
    promised.promise("b", 60 << 20, 1 << 20, 100 << 20)
    promised.settle("b", 0)
    promised.promise("c", 70 << 20, 0, 100 << 20)


@pytest.mark.parametrize(("limit", "left"), [("1000", 700), ("400", 100), ("200", 0), ("max", 5000)])
def test_a_cgroup_bounds_memory_and_its_page_cache_counts_as_free(
    tmp_path: Path, limit: str, left: int
) -> None:
    for name, text in {
        "memory.max": f"{limit}\n",
        "memory.current": "500\n",
        "memory.stat": "anon 300\ninactive_file 200\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert cgroup_memory(tmp_path, 5000) == left


def test_a_cgroup_without_limits_bounds_nothing(tmp_path: Path) -> None:
    assert cgroup_memory(tmp_path / "absent", 5000) == 5000
