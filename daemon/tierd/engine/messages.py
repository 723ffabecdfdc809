"""What may lie in the engine's inbox: commands of other threads, and completions of workers and runners."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from tierd.backends.protocol import Result
from tierd.core import Request
from tierd.engine.catalogue import CatalogueEntry
from tierd.kv.moves import Move
from tierd.kv.spill import SpillDone
from tierd.settings import ModelSettings
from tierd.slot import Placed, Slot, Step


@dataclass(frozen=True, slots=True)
class Submit:
    """Serve a request. submitted: when it was asked for, monotonic seconds."""

    request: Request
    submitted: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request, wherever it is."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Taken:
    """A stream's client has taken so many texts."""

    request_id: str
    count: int


@dataclass(frozen=True, slots=True)
class Load:
    """Open a model; `loaded` tells how that went."""

    settings: ModelSettings
    loaded: Future[CatalogueEntry]


@dataclass(frozen=True, slots=True)
class Flush:
    """Empty the prefix cache of a model, or of all (None); `freed` gets the number of pages."""

    model: str | None
    freed: Future[int]


@dataclass(frozen=True, slots=True)
class Drain:
    """Admit nothing more; `drained` is done once the last stream has ended."""

    drained: Future[None]


@dataclass(frozen=True, slots=True)
class Stop:
    """End every request and finish. The last command there is."""


@dataclass(frozen=True, slots=True)
class LoadDone:
    """A worker is through with a Load."""

    load: Load
    result: Slot | Exception


@dataclass(frozen=True, slots=True)
class StepDone:
    """A runner is through with a slot's step. seconds: how long it took."""

    slot: Slot
    step: Step
    result: Result | Exception
    seconds: float


@dataclass(frozen=True, slots=True)
class MoveDone:
    """A runner is through with a slice of a slot's move. error: what went wrong, None when nothing did."""

    slot: Slot
    move: Move
    error: Exception | None


@dataclass(frozen=True, slots=True)
class UnderstudyDone:
    """A worker has opened a slot's model on the CPU, or says why it cannot be."""

    slot: Slot
    result: Slot | Exception


@dataclass(frozen=True, slots=True)
class RearmDone:
    """A worker has put a slot's model on the device once more, or says why it cannot be."""

    slot: Slot
    result: Placed | Exception


Message = (
    Submit
    | Cancel
    | Taken
    | Load
    | Flush
    | Drain
    | Stop
    | LoadDone
    | StepDone
    | MoveDone
    | SpillDone
    | UnderstudyDone
    | RearmDone
)
