"""SentencePiece BPE by score with byte fallback (`tokenizer.ggml.model = llama`), run by `sentencepiece`.

Neighbouring pieces are merged while they form a token, the best score first, the leftmost on a tie; a
character without a token becomes its UTF-8 bytes. The library takes the vocabulary as a model in its
own protobuf format (https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto).
As llama.cpp merges into control and user-defined tokens as well, all but bytes are declared normal; the
special tokens have been cut out before.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
from sentencepiece import SentencePieceProcessor

from tierd.chat.vocabulary import TOKENS, Vocabulary, read_vocabulary, token_id
from tierd.errors import ModelFileError
from tierd.models.gguf import GGUFFile

SCORES = "tokenizer.ggml.scores"

_SPACE = "▁"
_BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
# Type of a piece, in the library's numbering.
_NORMAL, _UNKNOWN, _BYTE = 1, 2, 6
# Field 2, trainer: 3 (model type) = 2 (BPE), 35 (byte fallback) = true.
_TRAINER = b"\x12\x05\x18\x02\x98\x02\x01"
# Field 3, normalizer: 1 (name) = "identity", 3 (dummy prefix), 4 (extra spaces), 5 (escaping) = false.
_NORMALIZER = b"\x1a\x10\x0a\x08identity\x18\x00\x20\x00\x28\x00"


class SentencePieceBPE:
    """Encodes ordinary text with one model's scores; immutable and thread-safe.

    begins_with_space: every stretch of text is encoded as if a space stood before it.
    """

    adds_bos = True

    def __init__(self, file: GGUFFile) -> None:
        """Raises ModelFileError naming the key."""
        self.vocabulary = read_vocabulary(file, bos_id=1, eos_id=2)
        self.begins_with_space = file.flag("tokenizer.ggml.add_space_prefix", True)
        count = len(self.vocabulary.tokens)
        scores = file.numbers(SCORES)
        if len(scores) < count:
            raise ModelFileError(f"{file.path}: key {SCORES} has {len(scores)} entries for {count} tokens")
        if np.abs(scores).max() > np.finfo(np.float32).max:
            raise ModelFileError(f"{file.path}: key {SCORES} holds a number that float32 does not")
        ids = self.vocabulary.ids()
        missing = next((token for token in _BYTE_TOKENS if token not in ids), None)
        if missing is not None:
            raise ModelFileError(f"{file.path}: key {TOKENS} lacks the byte token {missing}")
        unknown = token_id(file, "unknown_token_id", count, 0)
        model = _model(self.vocabulary, [ids[token] for token in _BYTE_TOKENS], scores, unknown)
        try:
            self._processor = SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ModelFileError(f"{file.path}: key {TOKENS}: {' '.join(str(error).split())}") from None

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """Return the ids of a stretch of ordinary text. begins: of a text, not just a part of one."""
        prefix = _SPACE if begins and self.begins_with_space else ""
        ids: list[int] = self._processor.EncodeAsIds(prefix + text.replace(" ", _SPACE))
        return ids

    def spell(self, token: str) -> bytes:
        """Return the bytes that a token's spelling stands for."""
        return token.replace(_SPACE, " ").encode()


def _model(
    vocabulary: Vocabulary, byte_ids: list[int], scores: npt.NDArray[np.float64], unknown: int | None
) -> bytes:
    types = bytearray([_NORMAL]) * len(vocabulary.tokens)
    for index in byte_ids:
        types[index] = _BYTE
    types[unknown or 0] = _UNKNOWN
    pieces = []
    # Field 1, one piece: 1 (spelling), 2 (score), 3 (type).
    tail = struct.Struct("<cfcB").pack
    for token, score, kind in zip(vocabulary.tokens, scores.tolist(), types, strict=False):
        spelling = token.encode()
        size = _varint(len(spelling))
        pieces.append(
            b"\x0a%b\x0a%b%b%b"
            % (_varint(len(size) + len(spelling) + 8), size, spelling, tail(b"\x15", score, b"\x18", kind))
        )
    return b"".join(pieces) + _TRAINER + _NORMALIZER


def _varint(value: int) -> bytes:
    """Return a number in protobuf's base-128 encoding."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
