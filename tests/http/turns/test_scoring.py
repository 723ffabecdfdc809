"""Which tokens a text's log-probabilities are of."""

from __future__ import annotations

from engine.null_slot import ByteTokenizer
from tierd.chat.reply import Piece, Said, Thought
from tierd.chat.tokenizer import Tokenizer
from tierd.core import TokenLogprobs
from tierd.http.turns.scoring import Scoring

BYTES: Tokenizer = ByteTokenizer()  # type: ignore[assignment]
END = ByteTokenizer.eos_id


def scores(text: bytes | list[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(token, -1.0) for token in text]


def tokens(pieces: list[Piece]) -> list[tuple[str, list[int]]]:
    return [
        (piece.text, [entry.token for entry in piece.logprobs]) for piece in pieces if isinstance(piece, Said)
    ]


def test_a_text_has_the_tokens_that_it_is_made_of() -> None:
    scoring = Scoring(BYTES, ())
    assert tokens(scoring.score([Thought("ab")], scores(b"<ab>"))) == []
    assert tokens(scoring.score([Said("c", at=4)], scores(b"cd"))) == [("c", [*b"c"])]
    assert tokens(scoring.score([Said("d", at=5)], ())) == [("d", [*b"d"])]
    assert tokens(scoring.score([Said("f", at=7)], scores(b"ef"))) == [("f", [*b"f"])]
    assert scoring.rest([]) == []


def test_parts_of_a_character_belong_to_it() -> None:
    scoring = Scoring(BYTES, ())
    assert scoring.score([], scores("é".encode()[:1])) == []
    assert tokens(scoring.score([Said("é")], scores("é".encode()[1:]))) == [("é", [*"é".encode()])]


def test_what_shows_nothing_is_told_with_the_text_around_it() -> None:
    scoring = Scoring(BYTES, ())
    assert tokens(scoring.score([Said("a")], scores([97, END]))) == [("a", [97])]
    assert tokens(scoring.score([Said("b", at=1)], scores([98]))) == [("b", [END, 98])]
    assert scoring.score([], scores([END])) == []
    assert tokens(scoring.rest([])) == [("", [END])]


def test_spelled_tokens_take_the_room_of_their_spelling() -> None:
    spelling = len(BYTES.token_text(END))
    scoring = Scoring(BYTES, {END})
    assert tokens(scoring.score([Said("a", at=spelling)], scores([END, 97]))) == [("a", [97])]


def test_without_log_probabilities_pieces_stay_as_they_are() -> None:
    pieces: list[Piece] = [Said("a"), Thought("b")]
    assert Scoring(BYTES, ()).score(pieces, ()) == pieces
