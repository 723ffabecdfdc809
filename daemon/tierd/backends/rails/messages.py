"""What is asked of the process that has Kompute, and what it answers; see `worker`.

Things have numbers, which the asker gives and never gives again. Sizes are in words of 4 bytes.
"""

from __future__ import annotations

import msgspec

# Of one message.
MOST_BYTES = 1 << 16


class Open(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Open the device of a name, at an index of all that the loader lists. It comes first, and once."""

    index: int
    name: str


class MakeTensor(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Make a tensor. With it comes the descriptor of memory as large, which both processes see."""

    number: int
    words: int


class Hide(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Let go of the memory that both processes see of a tensor: it is not carried any more."""

    tensor: int


class MakeAlgorithm(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Bind a shader to tensors, for dispatches of so many groups."""

    number: int
    tensors: tuple[int, ...]
    spirv: bytes
    groups: tuple[int, int, int]
    push_words: int


class MakeRecording(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Record to carry tensors to the device, dispatch algorithms with what each is pushed, and carry back."""

    number: int
    inward: tuple[int, ...]
    dispatches: tuple[tuple[int, bytes], ...]
    outward: tuple[int, ...]


class Run(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Run a recording. inward, outward: words of each tensor to copy from, or to, what both see."""

    recording: int
    inward: tuple[int, ...]
    outward: tuple[int, ...]


class Free(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Free a tensor, an algorithm or a recording."""

    number: int


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What was asked is done."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """It is not. error: the class of `errors` that says so, by name."""

    error: str
    message: str


Call = Open | MakeTensor | Hide | MakeAlgorithm | MakeRecording | Run | Free
Answer = Done | Failed
