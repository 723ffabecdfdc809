"""Text to token ids and back, built from the tokenizer that a GGUF file describes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from tierd.chat.specials import SpecialTokens
from tierd.chat.vocabulary import TokenKind, Vocabulary, byte_of
from tierd.errors import InvalidRequestError, ModelFileError, UnsupportedModelError
from tierd.models.gguf import GGUFFile


class _Merger(Protocol):
    """What the kinds of tokenizer do differently; see ByteLevelBPE and SentencePieceBPE."""

    vocabulary: Vocabulary
    adds_bos: bool
    begins_with_space: bool

    def encode(self, text: str, *, begins: bool = True) -> list[int]: ...

    def spell(self, token: str) -> bytes: ...


def _byte_level(file: GGUFFile) -> _Merger:
    from tierd.chat.bytelevel import ByteLevelBPE

    return ByteLevelBPE(file)


def _sentence_piece(file: GGUFFile) -> _Merger:
    from tierd.chat.sentencepieces import SentencePieceBPE

    return SentencePieceBPE(file)


# Each has a library of its own, which is loaded once a model needs it.
_MERGERS: dict[str, Callable[[GGUFFile], _Merger]] = {"gpt2": _byte_level, "llama": _sentence_piece}


class Tokenizer:
    """Encodes and decodes; immutable and thread-safe.

    vocabulary: number of tokens. longest: of the tokens, in characters; none stands for more of a text.
    end_ids: the ids after which generation is over.
    bos_id, eos_id: None where the model has no such token. adds_bos: `add_special` begins texts with bos.
    """

    def __init__(self, merger: _Merger, specials: SpecialTokens, *, adds_bos: bool, adds_eos: bool) -> None:
        """`adds_bos` and `adds_eos`: what `add_special` puts around a text."""
        self._merger = merger
        self._specials = specials
        self._tokens = merger.vocabulary.tokens
        self._kinds = merger.vocabulary.kinds
        self.vocabulary = len(self._tokens)
        self.longest = max(map(len, self._tokens))
        self.end_ids = merger.vocabulary.end_ids
        self.bos_id = merger.vocabulary.bos_id
        self.eos_id = merger.vocabulary.eos_id
        self.adds_bos = adds_bos
        self._before = [self.bos_id] if adds_bos and self.bos_id is not None else []
        self._after = [self.eos_id] if adds_eos and self.eos_id is not None else []

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the ids of a text, as llama.cpp's `tokenize` does.

        add_special: put the begin and end tokens around it that the model wants. parse_special: take
        spellings of control tokens for the tokens themselves. Half a surrogate pair becomes U+FFFD.
        """
        ids = list(self._before) if add_special else []
        for part in self._specials.partition(_sound(text), parse_special=parse_special):
            ids.extend([part] if isinstance(part, int) else self._merger.encode(part))
        return ids + self._after if add_special else ids

    def encode_part(self, text: str) -> list[int]:
        """Return the ids of ordinary text in the middle of a text: nothing is put before it."""
        return self._merger.encode(_sound(text), begins=False)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text that the ids spell, control tokens left out, bad UTF-8 replaced by U+FFFD.

        Undoes `encode`: a space that it put before the text is taken away again. Raises
        InvalidRequestError for an id outside the vocabulary.
        """
        text = b"".join([self.token_bytes(token) for token in ids])
        if self._merger.begins_with_space:
            text = text.removeprefix(b" ")
        return text.decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """Return what a token adds to a text: UTF-8, perhaps part of a character; b"" for control tokens.

        Raises InvalidRequestError for an id outside the vocabulary.
        """
        spelling = self.token_text(token)
        match self._kinds[token]:
            case TokenKind.NORMAL:
                return self._merger.spell(spelling)
            case TokenKind.USER_DEFINED:
                return spelling.encode()
            case TokenKind.BYTE:
                return byte_of(spelling)
            case _:
                return b""

    def is_control(self, token: int) -> bool:
        """Whether a token of the vocabulary is a control token, which is no text."""
        return self._kinds[token] == TokenKind.CONTROL

    def token_text(self, token: int) -> str:
        """Return a token's spelling in the file, control tokens included.

        Raises InvalidRequestError for an id outside the vocabulary.
        """
        if not 0 <= token < self.vocabulary:
            raise InvalidRequestError(
                f"token {token} is outside the model's vocabulary of {self.vocabulary} tokens", param="tokens"
            )
        return self._tokens[token]


def build_tokenizer(file: GGUFFile) -> Tokenizer:
    """Build the tokenizer that a file describes; nothing of the file is needed afterwards.

    Raises UnsupportedModelError naming the tokenizer or pre-tokenizer, ModelFileError naming the key.
    """
    name = file.text("tokenizer.ggml.model")
    if name not in _MERGERS:
        raise UnsupportedModelError(
            f"{file.path}: key tokenizer.ggml.model asks for the tokenizer {name!a}, which is not known "
            f"here; known are {', '.join(_MERGERS)}"
        )
    merger = _MERGERS[name](file)
    adds_bos = file.flag("tokenizer.ggml.add_bos_token", merger.adds_bos)
    adds_eos = file.flag("tokenizer.ggml.add_eos_token", False)
    for wanted, token, role in (
        (adds_bos, merger.vocabulary.bos_id, "bos"),
        (adds_eos, merger.vocabulary.eos_id, "eos"),
    ):
        if wanted and token is None:
            raise ModelFileError(
                f"{file.path}: texts should have a {role} token, but key tokenizer.ggml.{role}_token_id is "
                "missing"
            )
    specials = SpecialTokens(merger.vocabulary, _stripping(file, merger.vocabulary))
    return Tokenizer(merger, specials, adds_bos=adds_bos, adds_eos=adds_eos)


def _stripping(file: GGUFFile, vocabulary: Vocabulary) -> frozenset[str]:
    """Return the special tokens that swallow white space after them.

    GGUF has no key for it; llama.cpp knows it of Phi-3, by the model's name.
    """
    name = file.text("general.name", "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    kept = {"<unk>", "<s>", "<|endoftext|>"}
    return frozenset(vocabulary.tokens) - kept


def _sound(text: str) -> str:
    """Return the text with its surrogates paired up, or replaced where they have no partner."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
