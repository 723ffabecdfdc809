"""Makes malformed GGUF files out of sound ones, a given number from a given seed."""

from __future__ import annotations

import dataclasses
import math
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from forged import ARRAY, BOOL, F32, F64, I32, STRING, U8, U32, U64, Entry, Key, array, string
from hostile.anatomy import Field, Parts

INTEGERS = (0, 1, 2, 3, 127, 255, 4096, 65_535, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53)
INTEGERS += (2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1)
FLOATS = (math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 1e-45, 1e-12, 1e12, 3.4e38, 1e300)
TEXTS = (b"", b"\0", b"\xff\xfe", b"x" * 5000, "\u2028".encode(), b"llama", b"{% for", b"\xed\xa0\x80")

# Values with which a file would ask for much memory, for much time, or for nonsense; whole sets, as each
# alone is often refused for being at odds with another.
SIZES: tuple[dict[str, int | float], ...] = (
    {"block_count": 2**31 - 1},
    {"block_count": 1_000_000},
    {"block_count": 0},
    {"context_length": 2**31 - 1},
    {"context_length": 2**31},
    {"context_length": 0},
    {"embedding_length": 2**31 - 1},
    {"embedding_length": 0},
    {"feed_forward_length": 2**31 - 1},
    {"attention.head_count": 2**31 - 1, "attention.head_count_kv": 2**31 - 1},
    {"attention.head_count": 2**20, "attention.head_count_kv": 1},
    {"attention.head_count": 0, "attention.head_count_kv": 0},
    {"attention.head_count": 1, "attention.head_count_kv": 1},
    {"attention.head_count_kv": 7},
    {"attention.key_length": 4096, "attention.value_length": 4096},
    {"attention.key_length": 2**31 - 1, "attention.value_length": 2**31 - 1},
    {"attention.key_length": 1, "attention.value_length": 1, "rope.dimension_count": 2},
    {"attention.key_length": 0},
    {"attention.value_length": 64},
    {"rope.dimension_count": 0},
    {"rope.dimension_count": 3},
    {"rope.dimension_count": 2**31 - 1},
    {"rope.freq_base": math.nan},
    {"rope.freq_base": 1.0},
    {"rope.freq_base": 1e308},
    {"rope.freq_base_swa": -1.0},
    {"rope.scaling.factor": math.inf},
    {"rope.scaling.factor": 0.0},
    {"rope.scaling.attn_factor": math.nan},
    {"attention.scale": 1e308},
    {"attention.scale": -1.0},
    {"attention.scale": 1e-40},
    {"attention.sliding_window": 2**31 - 1},
    {"attention.sliding_window": 1},
    {"attention.sliding_window_pattern": 0},
    {"attention.sliding_window_pattern": 2**31 - 1},
    *({"attention.layer_norm_rms_epsilon": eps} for eps in FLOATS),
)

_Make = Callable[[random.Random, Parts], bytes]


@dataclass(frozen=True)
class Case:
    """A malformed file. name: what was done to what."""

    name: str
    content: bytes


def malformed_files(sound: Sequence[Parts], count: int, seed: int) -> Iterator[Case]:
    """Yield `count` files; the same ones for the same seed."""
    rng = random.Random(seed)
    makers = [maker for maker, weight in _WEIGHTS for _ in range(weight)]
    number = 0
    while number < count:
        parts = rng.choice(sound)
        maker = makers[number % len(makers)]
        content = maker(rng, parts)
        if content != parts.content:
            yield Case(maker.__name__.removeprefix("_"), content)
            number += 1


def _cut(rng: random.Random, parts: Parts) -> bytes:
    end = rng.choice((parts.head, len(parts.content)))
    return parts.content[: rng.randrange(end)]


def _flip_header(rng: random.Random, parts: Parts) -> bytes:
    return _flip(rng, parts.content, 0, 24, rng.randint(1, 3))


def _flip_field(rng: random.Random, parts: Parts) -> bytes:
    field = _some_field(rng, parts)
    return _flip(rng, parts.content, field.start, min(field.size, 64), 1)


def _lie(rng: random.Random, parts: Parts) -> bytes:
    """Overwrite a number, most often one that says how much there is of something."""
    field = _some_field(rng, parts)
    if field.size in (1, 2, 4, 8):
        true = int.from_bytes(parts.content[field.start :][: field.size], "little")
        lie = rng.choice((*INTEGERS, true + 1, true - 1, 2 * true)) % (1 << 8 * field.size)
        raw = lie.to_bytes(field.size, "little")
    else:
        raw = rng.randbytes(field.size)
    return _put(parts.content, field.start, raw)


def _lie_about_key(rng: random.Random, parts: Parts) -> bytes:
    """Remove a key, repeat it, or give it a value of any type."""
    keys = list(parts.keys)
    at = rng.randrange(len(keys))
    name = keys[at].name
    match rng.randrange(8):
        case 0:
            del keys[at]
        case 1:
            keys.append(keys[at])
        case 2:
            keys[at] = Key(name, STRING, string(rng.choice(TEXTS)))
        case 3:
            keys[at] = Key(name, U64, struct.pack("<Q", rng.choice(INTEGERS)))
        case 4:
            keys[at] = Key(name, I32, struct.pack("<i", rng.choice((-1, -(2**31), 7))))
        case 5:
            keys[at] = Key(name, F64, struct.pack("<d", rng.choice(FLOATS)))
        case 6:
            keys[at] = Key(name, BOOL, bytes([rng.randrange(3)]))
        case _:
            keys[at] = Key(name, ARRAY, array(U8, 3, b"\1\2\3"))
    return parts.forge(keys=keys)


def _lie_about_sizes(rng: random.Random, parts: Parts) -> bytes:
    """Overwrite, or add, hyper-parameters of the model."""
    architecture = "gemma3" if b"gemma3.block_count" in parts.content else "llama"
    wanted = {f"{architecture}.{key}": value for key, value in rng.choice(SIZES).items()}
    keys = [key for key in parts.keys if key.name not in wanted]
    return parts.forge(keys=keys + [_number(name, value) for name, value in wanted.items()])


def _lie_about_arrays(rng: random.Random, parts: Parts) -> bytes:
    """Give one of the tokenizer's arrays another length, or other contents."""
    keys = list(parts.keys)
    at = rng.choice([index for index, key in enumerate(keys) if key.kind == ARRAY])
    keys[at] = _other_array(rng, keys[at])
    return parts.forge(keys=keys)


def _other_array(rng: random.Random, key: Key) -> Key:
    kind, count = struct.unpack_from("<IQ", key.payload)
    if kind == STRING:
        texts = _strings(key.payload[12:], count)
        spot = rng.randrange(count)
        match rng.randrange(6):
            case 0:
                texts = texts[:spot]
            case 1:
                texts += texts[:spot]
            case 2:
                texts[spot] = texts[spot - 1]
            case 3:
                texts[spot] = rng.choice(TEXTS)
            case 4:
                texts = [rng.randbytes(3) for _ in texts]
            case _:
                rng.shuffle(texts)
        return Key(key.name, ARRAY, array(STRING, len(texts), b"".join(string(text) for text in texts)))
    count = rng.choice((0, 1, count - 1, count + 1, count * 2))
    match rng.randrange(4):
        case 0:
            return Key(key.name, ARRAY, array(kind, count, rng.randbytes(4 * count)))
        case 1:
            return Key(key.name, ARRAY, array(F32, count, struct.pack("<f", rng.choice(FLOATS[:9])) * count))
        case 2:
            return Key(key.name, ARRAY, array(I32, count, struct.pack("<i", rng.randint(-2, 9)) * count))
        case _:
            return Key(key.name, ARRAY, array(kind, count, (key.payload[12:] * 2)[: 4 * count]))


def _lie_about_tensor(rng: random.Random, parts: Parts) -> bytes:
    """Change what the directory says of one tensor, or take it out, or put it in twice."""
    entries = list(parts.entries)
    at = rng.randrange(len(entries))
    entry, other = entries[at], rng.choice(entries)
    dims = list(entry.dims)
    spot = rng.randrange(len(dims))
    match rng.randrange(9):
        case 0:
            entries[at] = dataclasses.replace(entry, kind=rng.choice((0, 1, 2, 3, 6, 7, 8, 10, 12, 14, 30)))
        case 1:
            entries[at] = dataclasses.replace(entry, dims=dims[::-1])
        case 2:
            dims[spot] = rng.choice((0, 1, dims[spot] + 1, dims[spot] - 1, 32, 2**31, 2**63, 2**64 - 1))
            entries[at] = dataclasses.replace(entry, dims=dims)
        case 3:
            entries[at] = dataclasses.replace(entry, dims=[*dims, rng.choice((0, 1, 2, 2**40))])
        case 4:
            entries[at] = dataclasses.replace(entry, dims=[math.prod(dims)])
        case 5:
            offset = rng.choice((other.offset, entry.offset + 32, entry.offset + 1, 2**63, 2**64 - 32))
            entries[at] = dataclasses.replace(entry, offset=offset)
        case 6:
            del entries[at]
        case 7:
            entries[at] = dataclasses.replace(entry, name=rng.choice((other.name, "", "x", "blk.0", "é\n")))
        case _:
            entries.append(Entry(rng.choice(("x", entry.name)), (32,), 0, 0))
    return parts.forge(entries=entries)


def _spoil_weights(rng: random.Random, parts: Parts) -> bytes:
    """Put numbers among the weights that are not finite, or any bytes at all."""
    entry = rng.choice(parts.entries)
    start = len(parts.content) - len(parts.data) + entry.offset
    raw = rng.choice((b"\0\0\xc0\x7f", b"\0\0\x80\xff", b"\xff\x7b\xff\x7b", b"")) * 64
    return _put(parts.content, start, (raw or rng.randbytes(256))[: len(parts.content) - start])


def _some_field(rng: random.Random, parts: Parts) -> Field:
    role = rng.choice(sorted({field.role for field in parts.fields if field.owner != "the header"}))
    return rng.choice([field for field in parts.fields if field.role == role])


def _flip(rng: random.Random, content: bytes, start: int, size: int, bits: int) -> bytes:
    flipped = bytearray(content)
    for bit in rng.sample(range(8 * size), bits):
        flipped[start + bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def _put(content: bytes, start: int, raw: bytes) -> bytes:
    return content[:start] + raw + content[start + len(raw) :]


def _number(name: str, value: int | float) -> Key:
    if isinstance(value, int):
        return Key(name, U32, struct.pack("<I", value))
    return Key(name, F64, struct.pack("<d", value))


def _strings(payload: bytes, count: int) -> list[bytes]:
    texts, at = [], 0
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", payload, at)
        texts.append(payload[at + 8 : at + 8 + length])
        at += 8 + length
    return texts


_WEIGHTS: tuple[tuple[_Make, int], ...] = (
    (_cut, 7),
    (_flip_header, 4),
    (_flip_field, 7),
    (_lie, 12),
    (_lie_about_key, 6),
    (_lie_about_sizes, 6),
    (_lie_about_arrays, 4),
    (_lie_about_tensor, 6),
    (_spoil_weights, 1),
)
