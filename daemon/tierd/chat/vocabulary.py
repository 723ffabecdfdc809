"""A GGUF file's vocabulary: spellings, kinds, and the ids that begin and end a text.

Keys and token kinds are those of the GGUF specification
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, "Tokenizer"). What a file leaves open is
decided as llama.cpp decides it (`llama_vocab::impl::load`), so that ids agree with it.
"""

from __future__ import annotations

import enum
import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tierd.errors import ModelFileError
from tierd.models.gguf import GGUFFile

TOKENS = "tokenizer.ggml.tokens"
KINDS = "tokenizer.ggml.token_type"


class TokenKind(enum.IntEnum):
    """What a token is, by its number in `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Spellings:
    """Texts by number, in one run of bytes: as a list of strings they would take ten times the memory."""

    def __init__(self, texts: Iterable[str]) -> None:
        encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
        self._bytes = b"".join(encoded)
        self._ends = array("I", itertools.accumulate(map(len, encoded), initial=0))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        return self._bytes[self._ends[index] : self._ends[index + 1]].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Every token of a model, immutable.

    tokens: spelling by id. kinds: TokenKind by id, one byte each.
    end_ids: the ids after which generation is over.
    """

    tokens: Spellings
    kinds: bytes
    bos_id: int | None
    eos_id: int | None
    end_ids: frozenset[int]

    def ids(self) -> dict[str, int]:
        """Make the table of ids by spelling; only building a tokenizer takes it."""
        return {token: index for index, token in enumerate(self.tokens)}


# Spellings that end generation wherever they occur.
_END = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    }
)

# Fill-in-the-middle roles, each with the key that names its token and the spellings tried without it.
_INFILL = {
    "prefix": (
        ("fim_pre_token_id", "prefix_token_id"),
        (
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ),
    ),
    "suffix": (
        ("fim_suf_token_id", "suffix_token_id"),
        (
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ),
    ),
    "middle": (
        ("fim_mid_token_id", "middle_token_id"),
        (
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ),
    ),
    "pad": (("fim_pad_token_id",), ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    "repository": (
        ("fim_rep_token_id",),
        ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    ),
    "file": (("fim_sep_token_id",), ("<|file_sep|>",)),
}
_INFILL_END = ("pad", "repository", "file")

# Channel marks of the Harmony format belong to the text; its "<|end|>" ends a message, not the answer.
_ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
_MESSAGE_END = "<|end|>"
_MESSAGE_END_COMPANIONS = (
    {"<|return|>", "<|call|>"},
    {"<|return|>", "<|calls|>"},
    {"<|call|>", "<|flush|>"},
    {"<|calls|>", "<|flush|>"},
)
# Vocabularies in which "</s>" is ordinary text.
_STRIKE_END = "</s>"
_STRIKE_END_COMPANIONS = ({"<|tool_response>"}, {"<|plamo:eos|>"})


def read_vocabulary(file: GGUFFile, *, bos_id: int | None, eos_id: int | None) -> Vocabulary:
    """Read and check a file's vocabulary; `bos_id` and `eos_id` stand in where the file names none.

    Raises ModelFileError naming the key at fault.
    """
    tokens = _read_tokens(file)
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(index for index, token in enumerate(tokens) if ids[token] != index)
        raise ModelFileError(
            f"{file.path}: key {TOKENS} spells tokens {twice} and {ids[tokens[twice]]} alike: "
            f"{tokens[twice]!a}"
        )
    kinds = _read_kinds(file, len(tokens))
    bos_id = token_id(file, "bos_token_id", len(tokens), bos_id)
    eos_id = token_id(file, "eos_token_id", len(tokens), eos_id)
    end_ids = _find_end_ids(file, ids, kinds, eos_id)
    _check_byte_tokens(file, tokens, kinds)
    return Vocabulary(Spellings(tokens), bytes(kinds), bos_id, eos_id, end_ids)


def token_id(file: GGUFFile, name: str, vocabulary: int, default: int | None = None) -> int | None:
    """Return the id under `tokenizer.ggml.<name>`; `default`, where it is a token at all, without one."""
    key = f"tokenizer.ggml.{name}"
    if key in file.metadata:
        return file.integer(key, most=vocabulary - 1)
    return default if default is not None and default < vocabulary else None


def _read_tokens(file: GGUFFile) -> list[str]:
    tokens = file.texts(TOKENS)
    if not tokens:
        raise ModelFileError(f"{file.path}: key {TOKENS} is empty")
    if "" in tokens:
        tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError:
        broken = next(index for index, token in enumerate(tokens) if _is_broken(token))
        raise ModelFileError(f"{file.path}: key {TOKENS}: token {broken} is not valid UTF-8") from None
    return tokens


def _is_broken(token: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in token)


def _read_kinds(file: GGUFFile, count: int) -> bytearray:
    if KINDS not in file.metadata:
        return bytearray([TokenKind.NORMAL]) * count
    kinds = file.integers(KINDS)
    if len(kinds) < count:
        raise ModelFileError(f"{file.path}: key {KINDS} has {len(kinds)} entries for {count} tokens")
    known = (kinds >= 0) & (kinds <= max(TokenKind))
    return bytearray(kinds.clip(0, max(TokenKind)).astype("u1") * known)[:count]


def _check_byte_tokens(file: GGUFFile, tokens: list[str], kinds: bytearray) -> None:
    position = kinds.find(TokenKind.BYTE)
    while position >= 0:
        try:
            byte_of(tokens[position])
        except ValueError:
            raise ModelFileError(
                f"{file.path}: key {TOKENS}: token {position} is a byte and should be spelled like <0x0A>, "
                f"not {tokens[position]!a}"
            ) from None
        position = kinds.find(TokenKind.BYTE, position + 1)


def byte_of(token: str) -> bytes:
    """Return the byte that a token spelled like `<0x0A>` stands for; ValueError for another spelling."""
    value = bytes.fromhex(token[3:5])
    if len(value) != 1 or token != f"<0x{token[3:5]}>":
        raise ValueError(token)
    return value


def _find_end_ids(
    file: GGUFFile, ids: Mapping[str, int], kinds: bytearray, eos_id: int | None
) -> frozenset[int]:
    """Collect the end-of-generation ids; marks as control what only looks like text in the file."""
    roles = {role: _infill_token(file, ids, kinds, *row) for role, row in _INFILL.items()}
    end = {eos_id, token_id(file, "eot_token_id", len(kinds)), token_id(file, "eom_token_id", len(kinds))}
    end |= {roles[role] for role in _INFILL_END}
    for spelling in _END & ids.keys():
        end.add(ids[spelling])
        kinds[ids[spelling]] = TokenKind.CONTROL
    for spelling in _ALWAYS_SHOWN:
        if spelling in ids:
            kinds[ids[spelling]] = TokenKind.USER_DEFINED
    _spare(ids, kinds, end, _MESSAGE_END, _MESSAGE_END_COMPANIONS, TokenKind.USER_DEFINED)
    _spare(ids, kinds, end, _STRIKE_END, _STRIKE_END_COMPANIONS, TokenKind.NORMAL)
    return frozenset(token for token in end if token is not None)


def _infill_token(
    file: GGUFFile,
    ids: Mapping[str, int],
    kinds: bytearray,
    keys: Iterable[str],
    spellings: Iterable[str],
) -> int | None:
    for key in keys:
        named = token_id(file, key, len(kinds))
        if named is not None:
            return named
    found = min((ids[spelling] for spelling in spellings if spelling in ids), default=None)
    if found is not None:
        kinds[found] = TokenKind.CONTROL
    return found


def _spare(
    ids: Mapping[str, int],
    kinds: bytearray,
    end: set[int | None],
    spelling: str,
    companions: Iterable[set[str]],
    kind: TokenKind,
) -> None:
    """Take `spelling` out of `end` where all of one set of companions are in it."""
    if ids.get(spelling) in end and any(
        all(companion in ids and ids[companion] in end for companion in together) for together in companions
    ):
        end.discard(ids[spelling])
        kinds[ids[spelling]] = kind
