from __future__ import annotations

import msgspec
import pytest

from tierd.errors import InvalidRequestError
from tierd.http.body import decode

HALVES = [
    rb'"\ud800"}',
    rb'"\uDBFFx"}',
    b'"\\ud800\n"}',
    rb'"\\\ud800"}',
    rb'"\ud800 and much behind it"}',
    rb'"\ud800\u0041 and much behind it"}',
    rb'"\ud800\ud800 and much behind it"}',
    rb'"\udc00"}',
    rb'"\udc00 and much behind it"}',
]
CUT = [rb'"\ud83d\ude00', rb'"\ud83d\ude', rb'"\ud83d', rb'"\ud8', rb'"\\ud800"', b'"a', b""]


@pytest.mark.parametrize("kind", [dict[str, str], dict[str, msgspec.Raw]])
@pytest.mark.parametrize("text", HALVES)
def test_half_of_a_surrogate_pair_is_named(text: bytes, kind: type[object]) -> None:
    with pytest.raises(InvalidRequestError, match=r"half of a surrogate pair before byte \d+; write"):
        decode(b'{"a": ' + text, msgspec.json.Decoder(kind))


@pytest.mark.parametrize("text", CUT)
def test_what_was_cut_off_is_told_from_it(text: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="truncated"):
        decode(b'{"a": ' + text, msgspec.json.Decoder(dict[str, str]))


def test_another_fault_before_it_is_the_one_that_is_told() -> None:
    with pytest.raises(InvalidRequestError, match=r"invalid character \(byte 6\)"):
        decode(rb'{"a": NaN, "b": "\ud800"}', msgspec.json.Decoder(dict[str, object]))


def test_whole_pairs_are_characters() -> None:
    decoder = msgspec.json.Decoder(dict[str, str])
    assert decode(rb'{"a": "\ud83d\ude00"}', decoder) == {"a": "\U0001f600"}
