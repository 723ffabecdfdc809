"""Responses that have ended, kept for whoever asks for them later or goes on from them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

# What an entry takes beside its bytes, and what each of its frames does.
OVERHEAD = 512
FRAME_OVERHEAD = 48


@dataclass(frozen=True, slots=True)
class Kept:
    """A response. response: its JSON. input: that of the list of all items that the model was given.

    frames: its stream, where it may be asked for again.
    """

    id: str
    response: bytes
    input: bytes
    frames: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        frames = sum(len(frame) + FRAME_OVERHEAD for frame in self.frames)
        return len(self.response) + len(self.input) + frames + OVERHEAD


class ResponsesStore:
    """Bounded by number and by bytes, of all owners together; the oldest make room. For one thread.

    An owner sees no others' responses. size: bytes that all take.
    """

    def __init__(self, capacity: int, most_bytes: int) -> None:
        self._capacity = capacity
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[str, str], Kept] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, owner: str, kept: Kept) -> None:
        """Keep a response. One that is larger than all may be is not kept, and nobody makes room for it."""
        if kept.size > self._most_bytes:
            return
        self.remove(owner, kept.id)
        self._kept[owner, kept.id] = kept
        self.size += kept.size
        while len(self._kept) > self._capacity or self.size > self._most_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.size -= oldest.size

    def find(self, owner: str, id: str) -> Kept | None:
        """Return a response, None where there is none."""
        return self._kept.get((owner, id))

    def remove(self, owner: str, id: str) -> bool:
        """Forget a response; return whether there was one."""
        kept = self._kept.pop((owner, id), None)
        if kept is None:
            return False
        self.size -= kept.size
        return True
