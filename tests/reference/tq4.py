"""The K/V codec tq4 in plain numpy, bit for bit: the definition that hostkernels/codecs.c states."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

LEVELS = np.array([-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127], np.float32)
EDGES = (LEVELS[1:] + LEVELS[:-1]) / 2
FITS = np.array([0.75, 0.825, 0.9, 0.975, 1.05], np.float32)
BLOCK = 32


def signs(size: int) -> Floats:
    """Return the fixed signs."""
    mixed = np.arange(1, size + 1, dtype=np.uint64) * 0x9E3779B9 % 2**32
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B % 2**32
    return np.where(mixed >> 31, -1.0, 1.0).astype(np.float32)


def rotate(head: Floats) -> Floats:
    """Return signs times the head, transformed."""
    x = head * signs(head.size)
    step = 1
    while step < x.size:
        pairs = x.reshape(-1, 2, step)
        x = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        step *= 2
    return x * (np.float32(1) / np.sqrt(np.float32(x.size)))


def encode(
    head: Floats, scale: Floats | None = None, feedback: Floats | None = None
) -> npt.NDArray[np.uint8]:
    """Return a head's bytes. feedback: the triangle as a flat array."""
    x = rotate(head if scale is None else head * scale)
    stored = np.zeros((x.size // BLOCK, 18), np.uint8)
    for block in reversed(range(len(stored))):
        own = slice(block * BLOCK, (block + 1) * BLOCK)
        step = _step(x[own])
        inverse = _inverse(step)
        stored[block, :2] = step.reshape(1).view(np.uint8)
        for i in reversed(range(own.start, own.stop)):
            nibble = int((x[i] * inverse >= EDGES).sum())
            stored[block, 2 + i % 16] |= nibble << (4 if i % BLOCK >= 16 else 0)
            if feedback is not None:
                error = x[i] - np.float32(step) * LEVELS[nibble]
                x[:i] += feedback[i * (i - 1) // 2 : i * (i + 1) // 2] * error
    return stored.reshape(-1)


def _step(x: Floats) -> np.float16:
    steps = [np.float16(step) for step in np.abs(x).max() / np.float32(127) * FITS]
    distances = []
    for step in steps:
        nearest = LEVELS[(x[:, None] * _inverse(step) >= EDGES).sum(axis=1)]
        squares = np.square(x - np.float32(step) * nearest)
        while squares.size > 1:
            squares = squares[: squares.size // 2] + squares[squares.size // 2 :]
        distances.append(squares[0])
    return steps[int(np.argmin(distances))]


def _inverse(step: np.float16) -> np.float32:
    return np.float32(1) / np.float32(step) if step else np.float32(0)
