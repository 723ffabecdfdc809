"""A device as Kompute has it in its process: what models make there, and what memory they share with it."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import mmap
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tierd.backends.patience import step_timeout_s
from tierd.backends.rails import messages
from tierd.backends.rails.process import Process
from tierd.backends.vkapi import DeviceFacts
from tierd.errors import DeviceError, DeviceMemoryError, NoDeviceError

Words = npt.NDArray[np.uint32]

WORD = 4
# A tensor takes so many times its bytes: Kompute keeps a copy that the host sees.
COPIES = 2
_NONE: Words = np.zeros(0, np.uint32)


class Card:
    """A device in a process of its own, for any thread. name: of the device. place: that and its driver.

    The process is given up, and with it all that is there, once it does not answer, dies or fails at what it
    runs. Then all that is asked of the card raises DeviceLostError; closing things does not.
    """

    def __init__(self, index: int, facts: DeviceFacts) -> None:
        """Open the device of these facts, at an index of all that the loader lists. Raises DeviceError."""
        if importlib.util.find_spec("kp") is None:
            raise NoDeviceError(
                "Kompute cannot be loaded (kp is not installed); `make serve` installs it where it can, "
                "`tierd doctor` says what that takes"
            )
        self.name = facts.name
        self.place = f"{facts.name}, driver {facts.driver} {facts.driver_uuid}"
        self._process = Process(facts.name, step_timeout_s(software=facts.type == "software"))
        self._numbers = itertools.count()
        try:
            self.ask(messages.Open(index, facts.name))
        except BaseException:
            self._process.close()
            raise

    @property
    def abandoned(self) -> str:
        """Why the process was given up, "" if it was not."""
        return self._process.abandoned

    @property
    def process_id(self) -> int:
        """Of the process that has the device."""
        return self._process.id

    def tensor(self, words: int, shared: Shared) -> Tensor:
        """Return a tensor of so many words, carried from and to the first of what is shared. DeviceError."""
        tensor = Tensor(self, next(self._numbers), shared.words[:words])
        self.ask(messages.MakeTensor(tensor.number, words), shared.descriptor)
        return tensor

    def algorithm(
        self, tensors: Sequence[Tensor], spirv: bytes, groups: tuple[int, int, int], push_words: int
    ) -> Algorithm:
        """Return a shader bound to tensors, for dispatches of so many groups. Raises DeviceError."""
        algorithm = Algorithm(self, next(self._numbers))
        bound = tuple(tensor.number for tensor in tensors)
        self.ask(messages.MakeAlgorithm(algorithm.number, bound, spirv, groups, push_words))
        return algorithm

    def record(
        self,
        inward: Sequence[Tensor],
        dispatches: Sequence[tuple[Algorithm, Words]],
        outward: Sequence[Tensor],
    ) -> Recording:
        """Record to carry tensors to the device, dispatch algorithms, carry tensors back. Raises DeviceError.

        With each algorithm goes what it is pushed.
        """
        recording = Recording(self, next(self._numbers))
        self.ask(
            messages.MakeRecording(
                recording.number,
                tuple(tensor.number for tensor in inward),
                tuple((algorithm.number, push.tobytes()) for algorithm, push in dispatches),
                tuple(tensor.number for tensor in outward),
            )
        )
        return recording

    def ask(self, call: messages.Call, descriptor: int | None = None) -> None:
        """See `Process.ask`."""
        self._process.ask(call, descriptor)

    def abandon(self, error: DeviceError) -> None:
        """See `Process.abandon`."""
        self._process.abandon(error)

    def close(self) -> None:
        """Close the device. Idempotent; what was made with it has been closed."""
        self._process.close()


class Shared:
    """Memory for what tensors carry, which a card's process sees as well. words: of it.

    descriptor: with which a process gets at it, until it is closed.
    """

    def __init__(self, words: int) -> None:
        """Raises DeviceMemoryError where there is none."""
        self.descriptor = os.memfd_create("tierd-rails", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(self.descriptor, 0, words * WORD)
            self.words: Words = np.frombuffer(mmap.mmap(self.descriptor, words * WORD), np.uint32)
        except OSError as error:
            self.close()
            raise DeviceMemoryError(f"there are no {words * WORD} bytes to share: {error}") from error

    def close(self) -> None:
        """Give it to no other tensor. It is freed with those that it was given to, and with its words."""
        os.close(self.descriptor)


class _Made:
    """What was made on a card. number: see `messages`."""

    def __init__(self, card: Card, number: int) -> None:
        self.number = number
        self._card = card

    def close(self) -> None:
        """Free it."""
        with contextlib.suppress(DeviceError):  # then the process was given up, which frees it too
            self._card.ask(messages.Free(self.number))


class Tensor(_Made):
    """Words of a device. words: those that are carried there, and back."""

    def __init__(self, card: Card, number: int, words: Words) -> None:
        """Use `Card.tensor`."""
        super().__init__(card, number)
        self.words = words

    def hide(self) -> None:
        """Let go of its words: it is not carried any more."""
        self.words = _NONE
        self._card.ask(messages.Hide(self.number))

    def close(self) -> None:
        """Free it."""
        self.words = _NONE
        super().close()


class Algorithm(_Made):
    """A shader with the tensors that it is bound to."""


class Recording(_Made):
    """Commands that are run as they were recorded."""

    def run(self, inward: Sequence[int], outward: Sequence[int]) -> None:
        """Run them and wait, with the GIL released. Raises DeviceError: then the card is given up.

        inward, outward: how many words of each tensor that they carry are of use, from the first on.
        """
        try:
            self._card.ask(messages.Run(self.number, tuple(inward), tuple(outward)))
        except DeviceError as error:
            self._card.abandon(error)
            raise
