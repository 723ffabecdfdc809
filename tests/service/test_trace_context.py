from __future__ import annotations

import pytest

from tierd.service.trace_context import TraceContext, received, trace_id

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def of(*values: str) -> TraceContext | None:
    return received([(b"host", b"x"), *((b"traceparent", value.encode()) for value in values)])


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"00-{TRACE}-{PARENT}-00", False),
        (f" 00-{TRACE}-{PARENT}-01\t", True),
        (f"00-{TRACE}-{PARENT}-ff", True),  # of flags that are not known nothing follows
        (f"00-{TRACE}-{PARENT}-02", False),
        (f"cc-{TRACE}-{PARENT}-01", True),  # a version to come
        (f"cc-{TRACE}-{PARENT}-01-what-the-future-will-be-like", True),
    ],
)
def test_valid_headers(header: str, sampled: bool) -> None:
    assert of(header) == TraceContext(TRACE, PARENT, sampled)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE[1:]}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE}-{PARENT}-01-",
        f"00-{TRACE}-{PARENT}-01-more",
        f"cc-{TRACE}-{PARENT}-01.more",
        f"00-{TRACE}-{PARENT}-01\n",
        f"00-{TRACE}-{PARENT}-zz",
    ],
)
def test_others_count_for_nothing(header: str) -> None:
    assert of(header) is None


def test_no_header_and_several() -> None:
    assert of() is None
    assert of(f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-01") is None


def test_it_is_handed_on_under_another_span() -> None:
    context = of(f"cc-{TRACE}-{PARENT}-03-more")
    assert context is not None
    header = context.header("1234567890abcdef")
    assert header == f"00-{TRACE}-1234567890abcdef-01"
    assert trace_id(header) == TRACE
    assert trace_id("") is None
