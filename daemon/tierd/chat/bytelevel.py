"""Byte-level BPE (`tokenizer.ggml.model = gpt2`), merged by Hugging Face `tokenizers`.

A text is cut into words by the model's pre-tokenizer, each word's UTF-8 bytes are written in GPT-2's
alphabet of 256 printable characters, and neighbours are merged in the order of `tokenizer.ggml.merges`.
The patterns are those of llama.cpp (`llm_tokenizer_bpe`), each applied to the pieces the one before left.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from tierd.chat.vocabulary import Vocabulary, read_vocabulary
from tierd.errors import ModelFileError, UnsupportedModelError
from tierd.models.gguf import GGUFFile

MERGES = "tokenizer.ggml.merges"

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_LLAMA3_WORDS = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace("{1,3}", "")


@dataclass(frozen=True, slots=True)
class Words:
    """A pre-tokenizer.

    whole_words: a word that is a token is taken whole. begins: texts begin with bos unless the file says no.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    begins: bool = False


_LLAMA3 = Words((_LLAMA3_WORDS,), whole_words=True, begins=True)

PRE_TOKENIZERS: dict[str, Words] = {
    "default": Words((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": Words((_GPT2_WORDS,)),
    "smollm": Words((r"\p{N}", _GPT2_WORDS)),
    "qwen2": Words((_QWEN2_WORDS,)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "falcon-h1": _LLAMA3,
    "pixtral": _LLAMA3,
    "midm-2.0": _LLAMA3,
    "lfm2": _LLAMA3,
}


def _alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 for itself, the other bytes from U+0100 up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTES = _alphabet()


class ByteLevelBPE:
    """Encodes ordinary text with one model's merges; immutable and thread-safe.

    Bytes that the vocabulary has no token for are dropped, as llama.cpp drops them.
    """

    begins_with_space = False

    def __init__(self, file: GGUFFile) -> None:
        """Raises ModelFileError, or UnsupportedModelError naming the pre-tokenizer."""
        name = file.text("tokenizer.ggml.pre", "default")
        if name not in PRE_TOKENIZERS:
            raise UnsupportedModelError(
                f"{file.path}: key tokenizer.ggml.pre asks for the pre-tokenizer {name!a}, which is not "
                f"known here; known are {', '.join(PRE_TOKENIZERS)}"
            )
        words = PRE_TOKENIZERS[name]
        self.adds_bos = words.begins
        self.vocabulary = read_vocabulary(file, bos_id=None, eos_id=None)
        self._tokenizer = Tokenizer(_merger(file, self.vocabulary, words))
        self._tokenizer.pre_tokenizer = _splitter(words)

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """Return the ids of a stretch of ordinary text, whether it begins a text or not."""
        # A batch of one: unlike `encode`, it lets other threads run meanwhile.
        encoded = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
        count = len(self.vocabulary.tokens)
        return [token for token in encoded.ids if token < count]

    def spell(self, token: str) -> bytes:
        """Return the bytes that a token's spelling stands for."""
        try:
            return bytes([_BYTES[letter] for letter in token])
        except KeyError:
            return token.encode()


def _splitter(words: Words) -> PreTokenizer:
    cuts: list[PreTokenizer] = [Split(Regex(pattern), "isolated") for pattern in words.patterns]
    return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])


def _merger(file: GGUFFile, vocabulary: Vocabulary, words: Words) -> BPE:
    """Return the model; bytes without a token get ids past the vocabulary, to keep their neighbours apart."""
    ids = vocabulary.ids()
    merges: list[tuple[str, str]] = []
    for index, merge in enumerate(dict.fromkeys(file.texts(MERGES))):
        left, space, right = merge.partition(" ")
        if not (left and space and right and left in ids and right in ids):
            raise ModelFileError(
                f"{file.path}: key {MERGES}: merge {index} should be two tokens, not {merge!a}"
            )
        if left + right not in ids:
            raise ModelFileError(
                f"{file.path}: key {MERGES}: merge {index} makes {left + right!a}, which is no token"
            )
        merges.append((left, right))
    letters = [letter for letter in _BYTES if letter not in ids]
    extra = {letter: len(vocabulary.tokens) + index for index, letter in enumerate(letters)}
    return BPE({**ids, **extra}, merges, ignore_merges=words.whole_words)
