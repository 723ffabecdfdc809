from __future__ import annotations

import codecs
import mmap
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import unicode_vocabularies as vocabularies
from tierd.chat.stops import text_stream
from tierd.chat.tokenizer import Tokenizer, build_tokenizer
from tierd.errors import InvalidRequestError
from tierd.models.gguf import GGUFFile, Value


def tokenizer_of(metadata: dict[str, Value]) -> Tokenizer:
    return build_tokenizer(GGUFFile(Path("made-up.gguf"), mmap.mmap(-1, 1), metadata, {}))


BYTES = tokenizer_of(vocabularies.special_bytelevel({"<|im_end|>": vocabularies.CONTROL, "<é>": 4}))
PIECES = tokenizer_of(vocabularies.small_sentencepiece("small"))
STEADY = settings(deadline=None, derandomize=True, database=None)
HALVES = b"a\xc3\xa9\xe5\xa5\xbd\xf0\x9f\x98\x80\xff\xed\xa0\x80\xc0\xf4\x90"


def tokens(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any tokens, whole characters byte by byte among them."""
    byte = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocabulary - 1, -1, -1)}
    spelled = st.text("ab好é😀 \0", min_size=1, max_size=3).map(
        lambda text: [byte[bytes([value])] for value in text.encode() if bytes([value]) in byte]
    )
    broken = st.sampled_from([byte[bytes([value])] for value in HALVES]).map(lambda token: [token])
    anything = st.integers(0, tokenizer.vocabulary - 1).map(lambda token: [token])
    return st.lists(spelled | broken | anything, max_size=12).map(lambda lists: [*chain(*lists)])


CASES = st.sampled_from([BYTES, PIECES]).flatmap(
    lambda tokenizer: st.tuples(st.just(tokenizer), tokens(tokenizer))
)
STOPS = st.lists(st.text("ab好é😀 �", min_size=1, max_size=4), max_size=3)


def whole(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(tokenizer.token_bytes(token) for token in ids).decode("utf-8", "replace")


def cut(text: str, stop: list[str]) -> tuple[str, str | None]:
    """Return the text before the stop string that ends first, the longest of those, and that string."""
    for end in range(1, len(text) + 1):
        ending = [string for string in stop if text[:end].endswith(string)]
        if ending:
            first = max(ending, key=len)
            return text[: end - len(first)], first
    return text, None


@STEADY
@given(CASES, STOPS)
def test_pieces_join_to_the_whole_cut_at_the_first_stop(
    case: tuple[Tokenizer, list[int]], stop: list[str]
) -> None:
    tokenizer, ids = case
    expected, stop_string = cut(whole(tokenizer, ids), stop)
    stream = text_stream(tokenizer, stop)
    text = ""
    for token in ids:
        text += stream.push(token)
        assert expected.startswith(text)
    text += stream.finish()
    assert text == expected
    assert stream.stopped_by == stop_string


@STEADY
@given(CASES, STOPS)
def test_text_is_held_back_only_while_in_doubt(case: tuple[Tokenizer, list[int]], stop: list[str]) -> None:
    """Whole characters are held only while they may be the beginning of a stop string."""
    tokenizer, ids = case
    stream, decoder = text_stream(tokenizer, stop), codecs.getincrementaldecoder("utf-8")("replace")
    held = ""
    for token in ids:
        piece = stream.push(token)
        if stream.stopped_by is not None:
            return
        held = (held + decoder.decode(tokenizer.token_bytes(token))).removeprefix(piece)
        assert not held or any(string.startswith(held) for string in stop)


@STEADY
@given(CASES)
def test_a_stream_continues_its_prompt(case: tuple[Tokenizer, list[int]]) -> None:
    """Prompt and pieces together read as the decoding of all their tokens, spaces included."""
    tokenizer, ids = case
    prompt = tokenizer.encode("hello 好", add_special=False, parse_special=False)
    stream = text_stream(tokenizer, [])
    streamed = "".join(map(stream.push, ids)) + stream.finish()
    assert tokenizer.decode(prompt + ids) == tokenizer.decode(prompt) + streamed


def test_nothing_follows_a_stop() -> None:
    ids = BYTES.encode("one. two", add_special=False, parse_special=False)
    stream = text_stream(BYTES, [". t"])
    assert [stream.push(token) for token in ids] == ["o", "n", "e", "", "", "", "", ""]
    assert stream.stopped_by == ". t"
    assert stream.finish() == ""


def test_what_was_held_comes_out_once_it_is_harmless() -> None:
    stream = text_stream(BYTES, ["aab"])
    pieces = [stream.push(token) for token in BYTES.encode("aaac", add_special=False, parse_special=False)]
    assert pieces == ["", "", "a", "aac"]
    stream = text_stream(BYTES, ["aab"])
    assert [stream.push(token) for token in BYTES.encode("aa", add_special=False, parse_special=False)] == [
        "",
        "",
    ]
    assert (stream.finish(), stream.stopped_by) == ("aa", None)


def test_half_a_character_is_replaced_at_the_end() -> None:
    stream = text_stream(BYTES, [])
    ids = BYTES.encode("é", add_special=False, parse_special=False)
    assert stream.push(ids[0]) == ""
    assert stream.finish() == "�"


def test_control_tokens_are_silent() -> None:
    stream = text_stream(BYTES, [])
    end, shown = 257, 258
    first, second = BYTES.encode("é", add_special=False, parse_special=False)
    assert [stream.push(token) for token in (first, end, second, shown)] == ["", "", "é", "<é>"]


def test_some_control_tokens_show_as_they_are_spelled() -> None:
    end = 257
    spelling = BYTES.token_text(end)
    stream = text_stream(BYTES, [], frozenset({end}))
    (a,) = BYTES.encode("a", add_special=False, parse_special=False)
    assert [stream.push(token) for token in (a, end, a)] == ["a", spelling, "a"]
    stream = text_stream(BYTES, [spelling[1:3]], frozenset({end}))
    assert [stream.push(token) for token in (a, end, a)] == ["a", spelling[:1], ""]
    assert stream.stopped_by == spelling[1:3]


def test_empty_stop_strings_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="stop string must not be empty") as caught:
        text_stream(BYTES, ["a", ""])
    assert caught.value.param == "stop"


@STEADY
@given(CASES, STOPS)
def test_a_token_shows_once_its_text_begins_to(case: tuple[Tokenizer, list[int]], stop: list[str]) -> None:
    tokenizer, ids = case
    stream = text_stream(tokenizer, stop)
    text = ""
    for pushed, token in enumerate(ids, 1):
        text += stream.push(token)
        begun = [len(_decoded(tokenizer, ids[:i])) for i in range(pushed)]
        assert stream.shown == sum(start < len(text) for start in begun)
        if stream.stopped_by is not None:
            return
    stream.finish()
    assert stream.shown == len(ids)


def _decoded(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Return the characters that are complete after some tokens."""
    raw = b"".join(tokenizer.token_bytes(token) for token in ids)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw)
