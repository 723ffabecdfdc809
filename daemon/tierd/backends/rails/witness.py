"""The witness of rails: Kompute opens the device, and one product of it is looked at."""

from __future__ import annotations

import contextlib

import numpy as np

from tierd.backends.rails.card import Card, Shared
from tierd.backends.rails.cuts import HEAD
from tierd.backends.resident import manifest
from tierd.backends.vkapi import choose_device, physical_devices
from tierd.errors import DeviceError

_ROWS, _OUTPUTS, _BLOCKS = 3, 70, 2
_TILE, _BLOCK = 64, 32


def open_card(*, allow_software: bool) -> Card:
    """Open the device that whole models would have, once it has multiplied. DeviceError says why not."""
    devices = physical_devices()
    index = choose_device(devices, allow_software=allow_software)
    card = Card(index, devices[index])
    try:
        _multiply(card)
    except BaseException:
        card.close()
        raise
    return card


def _multiply(card: Card) -> None:
    """Multiply small whole numbers as floats, which is exact."""
    groups = -(-_OUTPUTS // _TILE)
    columns = _BLOCKS * _BLOCK
    x = (np.arange(_ROWS * columns, dtype=np.float32) % 7 - 3).reshape(_ROWS, columns)
    weight = np.zeros((groups * _TILE, columns), np.float32)
    weight[:_OUTPUTS] = (np.arange(_OUTPUTS * columns) % 5 - 2).reshape(_OUTPUTS, columns)
    kernel = manifest.kernel("rails")
    tensors = []
    try:
        for words in (HEAD + x.size, weight.size, _ROWS * _OUTPUTS):
            with contextlib.closing(Shared(words)) as shared:
                tensors.append(card.tensor(words, shared))
        tensors[0].words[0] = _ROWS
        tensors[0].words[HEAD:] = x.view(np.uint32).ravel()
        laid = weight.reshape(groups, _TILE, _BLOCKS, _BLOCK).transpose(0, 2, 1, 3)
        tensors[1].words[:] = np.ascontiguousarray(laid).view(np.uint32).ravel()
        algorithm = card.algorithm(
            tensors, manifest.spirv(kernel, "floats"), (groups, 1, 1), kernel.push_bytes // 4
        )
        push = np.array([_OUTPUTS, 0, _BLOCKS, 0, 0, 0], np.uint32)
        recording = card.record(tensors[:2], [(algorithm, push)], tensors[2:])
        recording.run([tensor.words.size for tensor in tensors[:2]], [tensors[2].words.size])
        right = np.array_equal(
            tensors[2].words.view(np.float32).reshape(_ROWS, _OUTPUTS), x @ weight[:_OUTPUTS].T
        )
        recording.close()
        algorithm.close()
    finally:
        for tensor in tensors:
            tensor.close()
    if not right:
        raise DeviceError(f"{card.name} multiplies wrongly through Kompute; its driver cannot be trusted")
