"""Kompute (the package `kp`), which may not be there: the only home of its names.

Kompute holds the GIL in every call, also while it waits for the device, without end where that hangs. So it
has a process of its own, see `worker`; nothing here is called in another. Its device tensors have a copy as
large as themselves that the host sees. Commands are recorded once and run again and again, as a sequence of
its must not be recorded anew.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tierd.errors import DeviceError, DeviceLostError, DeviceMemoryError, NoDeviceError

Words = npt.NDArray[np.uint32]

# A NaN that no product is: what stands first where products come until they are there.
_NOTHING = 0x7FC0DEAD


def load() -> Any:
    """Return the package. Raises NoDeviceError where it is not installed or does not load."""
    try:
        return importlib.import_module("kp")
    except ImportError as error:
        raise NoDeviceError(
            f"Kompute cannot be loaded ({error}); `make serve` installs it where it can, `tierd doctor` says "
            "what that takes"
        ) from error


class Tensor:
    """Words of a device. words: Kompute's copy, as of the last time they were carried."""

    def __init__(self, handle: Any) -> None:
        """handle: a tensor of Kompute's."""
        self.handle = handle
        self.words: Words = handle.data()

    def close(self) -> None:
        """Free it. Nothing may look at its words any more."""
        del self.words
        self.handle.destroy()


class Algorithm:
    """A shader with the tensors that it is bound to."""

    def __init__(self, handle: Any) -> None:
        """handle: an algorithm of Kompute's."""
        self.handle = handle

    def close(self) -> None:
        """Free it."""
        self.handle.destroy()


class Recording:
    """Commands that are run as they were recorded. inward, outward: what they carry there and back."""

    def __init__(self, sequence: Any, name: str, inward: Sequence[Tensor], outward: Sequence[Tensor]) -> None:
        """sequence: of Kompute's. name: of the device."""
        self.inward = tuple(inward)
        self.outward = tuple(outward)
        self._sequence = sequence
        self._name = name

    def run(self) -> None:
        """Run them and wait. Raises DeviceLostError: then nothing is known of any tensor.

        Kompute looks neither at what submitting returns nor at what waiting does, but for a time that is up:
        of a device that is lost it need not tell. Then no tensor has been carried back.
        """
        for tensor in self.outward:
            tensor.words[0] = _NOTHING
        try:
            self._sequence.eval()
        except RuntimeError as error:
            raise DeviceLostError(f"{self._name} failed at a product: {error}") from error
        # Each comes back as a whole, or not at all.
        if any(tensor.words[0] == _NOTHING for tensor in self.outward):
            raise DeviceLostError(f"{self._name} failed at a product: nothing came back")

    def close(self) -> None:
        """Free them."""
        self._sequence.destroy()


class Card:
    """A device as Kompute has it. name: of the device."""

    def __init__(self, index: int, name: str) -> None:
        """Open the device of a name, at an index of all that the loader lists. Raises DeviceError."""
        self._kp = load()
        try:
            self._manager = self._kp.Manager(index)
            found = self._manager.get_device_properties()["device_name"]
        except RuntimeError as error:
            raise NoDeviceError(f"Kompute cannot open {name}: {error}") from error
        if found != name:
            self._manager.destroy()
            raise NoDeviceError(f"Kompute opens {found} where {name} was expected; it cannot be used")
        self.name = name

    def tensor(self, words: int) -> Tensor:
        """Return a tensor of so many words, all zero on the host. Raises DeviceMemoryError."""
        try:
            return Tensor(self._manager.tensor_t(np.zeros(words, np.uint32)))
        except RuntimeError as error:
            raise DeviceMemoryError(f"{self.name} has no room for {4 * words} bytes: {error}") from error

    def algorithm(
        self, tensors: Sequence[Tensor], spirv: bytes, groups: tuple[int, int, int], push_words: int
    ) -> Algorithm:
        """Return a shader bound to tensors, for dispatches of so many groups. Raises DeviceError."""
        handles = [tensor.handle for tensor in tensors]
        constants = np.zeros(0, np.uint32)
        try:
            handle = self._manager.algorithm(
                handles, spirv, groups, constants, np.zeros(push_words, np.uint32)
            )
        except RuntimeError as error:
            raise DeviceError(f"{self.name} refuses a shader: {error}") from error
        return Algorithm(handle)

    def record(
        self,
        inward: Sequence[Tensor],
        dispatches: Sequence[tuple[Algorithm, Words]],
        outward: Sequence[Tensor],
    ) -> Recording:
        """Record to carry tensors to the device, dispatch algorithms, carry tensors back. Raises DeviceError.

        With each algorithm goes what it is pushed.
        """
        kp = self._kp
        operations = [kp.OpTensorSyncDevice([tensor.handle for tensor in inward])] if inward else []
        operations += [kp.OpAlgoDispatch(algorithm.handle, push) for algorithm, push in dispatches]
        operations += [kp.OpTensorSyncLocal([tensor.handle for tensor in outward])] if outward else []
        try:
            sequence = self._manager.sequence()
            for operation in operations:
                sequence.record(operation)
        except RuntimeError as error:
            raise DeviceError(f"{self.name} cannot record commands: {error}") from error
        return Recording(sequence, self.name, inward, outward)
