"""The program that has Kompute, and with it the device, in a process of its own.

So a slow product leaves the daemon's interpreter alone, one that hangs can be ended, and with the process all
that it had of the device is freed; a driver that crashes takes this process with it and no other.

Run with the number of a descriptor, one end of a pair of sockets that keep the bounds of messages. Each of
`messages`' calls is answered in order by one answer, in MessagePack. Weights and activations do not go that
way: a tensor comes with the descriptor of anonymous memory that both processes map, from which what is to be
carried is copied into Kompute's own copy, and back. It ends when the other end is closed, or when the daemon
dies. What drivers and Kompute print is the daemon's to read.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tierd.backends.parent import die_with_parent
from tierd.backends.rails import messages
from tierd.backends.rails.kompute import Algorithm, Card, Recording, Tensor
from tierd.errors import DeviceError


class Desk:
    """All that was made so far, by number. The first call opens the device."""

    def __init__(self) -> None:
        self._card: Card | None = None
        self._tensors: dict[int, Tensor] = {}
        self._shared: dict[Tensor, npt.NDArray[np.uint32]] = {}
        self._algorithms: dict[int, Algorithm] = {}
        self._recordings: dict[int, Recording] = {}

    def do(self, call: messages.Call, descriptors: Sequence[int]) -> None:
        """Do what is asked. Raises DeviceError."""
        if isinstance(call, messages.Open):
            self._card = Card(call.index, call.name)
            return
        assert self._card is not None
        match call:
            case messages.MakeTensor(number, words):
                shared = _mapped(descriptors[0], words)
                tensor = self._tensors[number] = self._card.tensor(words)
                self._shared[tensor] = shared
            case messages.Hide(tensor=number):
                del self._shared[self._tensors[number]]
            case messages.MakeAlgorithm(number, tensors, spirv, groups, push_words):
                bound = [self._tensors[each] for each in tensors]
                self._algorithms[number] = self._card.algorithm(bound, spirv, groups, push_words)
            case messages.MakeRecording(number, inward, dispatches, outward):
                self._recordings[number] = self._card.record(
                    [self._tensors[each] for each in inward],
                    [(self._algorithms[each], np.frombuffer(push, np.uint32)) for each, push in dispatches],
                    [self._tensors[each] for each in outward],
                )
            case messages.Run():
                self._run(self._recordings[call.recording], call)
            case messages.Free(number):
                self._free(number)

    def _run(self, recording: Recording, call: messages.Run) -> None:
        for tensor, words in zip(recording.inward, call.inward, strict=True):
            tensor.words[:words] = self._shared[tensor][:words]
        recording.run()
        for tensor, words in zip(recording.outward, call.outward, strict=True):
            self._shared[tensor][:words] = tensor.words[:words]

    def _free(self, number: int) -> None:
        if number in self._tensors:
            tensor = self._tensors.pop(number)
            self._shared.pop(tensor, None)
            tensor.close()
        elif number in self._algorithms:
            self._algorithms.pop(number).close()
        else:
            self._recordings.pop(number).close()


def _mapped(descriptor: int, words: int) -> npt.NDArray[np.uint32]:
    """Return the words of memory that both processes see; its descriptor is closed."""
    try:
        return np.frombuffer(mmap.mmap(descriptor, words * 4), np.uint32)
    finally:
        os.close(descriptor)


def serve(channel: socket.socket) -> None:
    """Answer calls until there are no more."""
    desk = Desk()
    decoder = msgspec.msgpack.Decoder(messages.Call)
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, messages.MOST_BYTES, 1)
        if not data:
            return
        answer: messages.Answer = messages.Done()
        try:
            desk.do(decoder.decode(data), descriptors)
        except DeviceError as error:
            answer = messages.Failed(type(error).__name__, str(error))
        channel.send(msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    # Signals for the daemon reach its whole group; this process ends with the daemon, not before.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent()
    with contextlib.suppress(ConnectionError), socket.socket(fileno=int(sys.argv[1])) as daemon:
        serve(daemon)
    os._exit(0)  # a driver that hangs must not be asked to clean up
