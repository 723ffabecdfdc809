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

    def tensor(self, words: int) -> Tensor:
        """Return a tensor of so many words. Raises DeviceMemoryError."""
        return Tensor(self, next(self._numbers), words)

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
    """Words of a device. words: memory that its process sees as well, with what was carried last."""

    def __init__(self, card: Card, number: int, words: int) -> None:
        """Use `Card.tensor`."""
        super().__init__(card, number)
        descriptor = os.memfd_create("tierd-rails", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, words * WORD)
            self.words: Words = np.frombuffer(mmap.mmap(descriptor, words * WORD), np.uint32)
            card.ask(messages.MakeTensor(number, words), descriptor)
        except OSError as error:
            raise DeviceMemoryError(f"there are no {words * WORD} bytes to share: {error}") from error
        finally:
            os.close(descriptor)

    def hide(self) -> None:
        """Let go of the memory: it is not carried any more. Nothing may look at its words."""
        del self.words
        self._card.ask(messages.Hide(self.number))


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
