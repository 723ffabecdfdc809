"""K/V codecs: what is stored, and what comes back."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostkernels.calls import decode, encode
from reference import tq4
from tierd.backends import library
from tierd.models.formats import KV_CODECS, KVCodec


def _heads(count: int, size: int) -> np.ndarray:
    random = np.random.default_rng(size)
    heads = random.standard_normal((count, size)) * np.exp(2 * random.standard_normal((count, 1)))
    heads[:, ::9] *= 6.0
    return heads.astype(np.float32)


def test_f32_is_exact() -> None:
    for row in _heads(4, 40):
        np.testing.assert_array_equal(decode(KV_CODECS["f32"], encode(KV_CODECS["f32"], row), 40), row)


def test_f16_rounds_as_numpy_does() -> None:
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        65504.0,
        65519.9,
        65520.0,
        1e9,
        6e-8,
        2.9e-8,
        3e-8,
        -6.1e-5,
        6.2e-5,
    ]
    bits = np.random.default_rng(2).integers(0, 2**32, 4096, np.uint32).view(np.float32)
    bits = bits[~np.isnan(bits)]
    row = np.concatenate([np.float32(special), bits, _heads(1, 512)[0]])[: 4096 - 64]
    with np.errstate(over="ignore"):
        expected = row.astype(np.float16)
    stored = encode(KV_CODECS["f16"], row)
    np.testing.assert_array_equal(stored.view(np.uint16), expected.view(np.uint16))
    np.testing.assert_array_equal(decode(KV_CODECS["f16"], stored, row.size), expected.astype(np.float32))


def test_every_half_is_read_exactly() -> None:
    halves = np.arange(2**16, dtype=np.uint16)
    halves = halves[~np.isnan(halves.view(np.float16))]
    for part in np.split(halves, range(4096, halves.size, 4096)):
        ours = decode(KV_CODECS["f16"], part.view(np.uint8), part.size)
        np.testing.assert_array_equal(ours, part.view(np.float16).astype(np.float32))


def _rotation(size: int, together: int) -> np.ndarray:
    """The matrix of a codec's basis: signs, then orthonormal Walsh-Hadamard over `together` values each."""
    mixed = np.arange(1, size + 1, dtype=np.uint64) * 0x9E3779B9 % 2**32
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B % 2**32
    signs = np.where(mixed >> 31, -1.0, 1.0)
    hadamard = np.array([[1.0]])
    while len(hadamard) < together:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]]) / np.sqrt(2.0)
    return np.kron(np.eye(size // together), hadamard) * signs


@pytest.mark.parametrize("size", [32, 64, 96, 256])
def test_q8_0_is_ggmls_in_a_rotated_basis(size: int) -> None:
    codec, rotation = KV_CODECS["q8_0"], _rotation(size, 32)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(size), atol=1e-12)
    for row in [*_heads(20, size), np.zeros(size, np.float32)]:
        stored = encode(codec, row)
        rotated = (rotation @ row).astype(np.float32)
        theirs = gguf.quantize(rotated[None], gguf.GGMLQuantizationType.Q8_0)[0].reshape(-1, 34)
        scales, expected = (x[:, :2].copy().view(np.float16) for x in (stored.reshape(-1, 34), theirs))
        np.testing.assert_allclose(scales, expected, rtol=1.1e-3)
        steps = stored.reshape(-1, 34)[:, 2:].view(np.int8).astype(int)
        assert np.abs(steps - theirs[:, 2:].view(np.int8)).max() <= 1
        back = rotation.T @ gguf.dequantize(stored[None], gguf.GGMLQuantizationType.Q8_0)[0]
        np.testing.assert_allclose(decode(codec, stored, size), back, atol=1e-5 * np.abs(row).max())


@pytest.mark.parametrize("size", [32, 64, 128, 256])
def test_tq4_keeps_lengths_and_products(size: int) -> None:
    """Errors of the rotated form are small whatever the outliers, and spread without direction."""
    codec = KV_CODECS["tq4"]
    heads = _heads(200, size)
    back = np.stack([decode(codec, encode(codec, row), size) for row in heads])
    error = np.linalg.norm(back - heads, axis=1) / np.linalg.norm(heads, axis=1)
    assert error.mean() < 0.09
    assert error.max() < 0.16


@pytest.mark.parametrize("size", [32, 64, 256])
def test_tq4_stores_what_its_definition_says(size: int) -> None:
    """To the bit: plain, scaled, with feedback, and rows of zeros, of tiny and of huge values."""
    codec, random = KV_CODECS["tq4"], np.random.default_rng(size)
    scale = np.exp(random.standard_normal(size)).astype(np.float32)
    feedback = (0.3 * random.standard_normal(size * (size - 1) // 2)).astype(np.float32) / np.float32(size)
    heads = _heads(20, size)
    for row in [*heads, np.zeros(size, np.float32), 1e-7 * heads[0], 1e-4 * heads[0], 1e3 * heads[0]]:
        for options in ({}, {"scale": scale}, {"feedback": feedback}, {"scale": scale, "feedback": feedback}):
            np.testing.assert_array_equal(encode(codec, row, **options), tq4.encode(row, **options))


def test_tq4_reads_what_its_definition_says() -> None:
    codec, size = KV_CODECS["tq4"], 64
    scale = np.exp(np.random.default_rng(0).standard_normal(size)).astype(np.float32)
    basis = np.stack([tq4.rotate(unit) for unit in np.eye(size, dtype=np.float32)])
    for row in _heads(20, size):
        stored = encode(codec, row, scale=scale)
        blocks = stored.reshape(-1, 18)
        nibbles = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)
        steps = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        expected = basis @ (steps * tq4.LEVELS[nibbles]).ravel() / scale
        np.testing.assert_allclose(
            decode(codec, stored, size, scale=scale), expected, atol=1e-5 * np.abs(row).max() / scale.min()
        )


@pytest.mark.parametrize("codec", KV_CODECS.values(), ids=KV_CODECS)
def test_what_is_no_number_does_no_harm(codec: KVCodec) -> None:
    feedback = np.ones(64 * 63 // 2, np.float32)
    for bad in (np.nan, np.inf, -np.inf, 3e38):
        row = _heads(1, 64)[0]
        row[5] = bad
        decode(codec, encode(codec, row, feedback=feedback), 64)


@given(st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_encoding_is_stable(codec_id: int, seed: int) -> None:
    """What was read back and stored again stays what it is, within a step."""
    codec = next(entry for entry in KV_CODECS.values() if entry.id == codec_id)
    row = np.random.default_rng(seed).standard_normal(64).astype(np.float32)
    once = decode(codec, encode(codec, row), 64)
    twice = decode(codec, encode(codec, once), 64)
    assert np.abs(twice - once).max() <= (0.0 if codec.elements == 1 else 0.3 * np.abs(row).max())


def test_ids_are_the_abis() -> None:
    _, lib = library.load()
    ids = {name: codec.id for name, codec in KV_CODECS.items()}
    assert ids == {
        "f32": lib.HK_KV_F32,
        "f16": lib.HK_KV_F16,
        "q8_0": lib.HK_KV_Q8_0,
        "tq4": lib.HK_KV_TQ4,
    }
