"""What may lie in the engine's inbox: commands of other threads, and completions of workers and runners."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tierd.backends.protocol import Result
from tierd.core import Request, TokenLogprobs
from tierd.engine.catalogue import CatalogueEntry
from tierd.engine.operation import Operation
from tierd.errors import TierdError
from tierd.kv.moves import Move
from tierd.kv.spill import SpillCleared, SpillDone
from tierd.settings import ModelSettings, Settings
from tierd.slot import Placed, Slot, Step

if TYPE_CHECKING:
    from tierd.engine.switch import Switch


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
class Finish:
    """End a request as if its model had ended it: whoever reads its text has read enough."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Taken:
    """A stream's client has taken so many texts."""

    request_id: str
    count: int


@dataclass(frozen=True, slots=True)
class Allowed:
    """It is known what a stream may go on with that has waited for it."""


@dataclass(frozen=True, slots=True)
class Stranded:
    """A stream's grammar cannot go on. error: why."""

    request_id: str
    error: TierdError


@dataclass(frozen=True, slots=True)
class Load:
    """Open a model; `loaded` tells how that went.

    activate: bring it to its device too, whoever must leave.
    """

    settings: ModelSettings
    loaded: Future[CatalogueEntry]
    operation: Operation | None = None
    activate: bool = False


@dataclass(slots=True, eq=False)
class Unload:
    """Serve a model no more; `unloaded` is done once all of it is freed.

    until: when streams that still run are ended, monotonic seconds; None: they are waited for. late: it has
    been. forgets: its K/V goes, in files too; False for one that was never served.
    """

    model: str
    until: float | None
    unloaded: Future[None]
    operation: Operation | None = None
    late: bool = False
    forgets: bool = True


@dataclass(frozen=True, slots=True)
class Activate:
    """Bring a model to its device now; `activated` gets the seconds of each phase, none if it was there."""

    model: str
    activated: Future[Mapping[str, float]]
    operation: Operation | None = None


@dataclass(frozen=True, slots=True)
class Flush:
    """Empty the prefix cache of a model, or of all (None); `freed` gets the number of pages."""

    model: str | None
    freed: Future[int]


@dataclass(frozen=True, slots=True)
class Drain:
    """Admit nothing more; `drained` is done once the last stream has ended, and what is kept is in files.

    ending: the server ends then, and writes these as it stops.
    """

    drained: Future[None]
    operation: Operation | None = None
    ending: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """Admit requests again after a Drain."""

    resumed: Future[None]


@dataclass(frozen=True, slots=True)
class Configure:
    """Go by other settings from now on, as far as they may change while models are served."""

    settings: Settings
    configured: Future[None]


@dataclass(frozen=True, slots=True)
class Beat:
    """Take a turn; `turned` gets the seconds that the step or move takes by now which has taken longest."""

    turned: Future[float]


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
    """A runner is through with a slot's step. seconds: how long it took.

    scores: log-probabilities of the prompt's tokens that each of its sequences gets.
    """

    slot: Slot
    step: Step
    result: Result | Exception
    seconds: float
    scores: Ordered[tuple[TokenLogprobs, ...]] = ()


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


@dataclass(frozen=True, slots=True)
class SwitchPhase:
    """A worker has come to another phase of a switch, which others may want to see."""

    phase: str


@dataclass(slots=True, eq=False)
class SwitchDone:
    """A worker is through with the phases of a switch that are its.

    placed: models that are on the device now, the newcomer or, where that failed, those who left before.
    seconds: by phase. error: why it failed.
    """

    switch: Switch
    placed: dict[Slot, Placed] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    error: TierdError | None = None


@dataclass(frozen=True, slots=True)
class UnloadDone:
    """A worker has freed what a model had."""

    unload: Unload


Message = (
    Submit
    | Cancel
    | Finish
    | Taken
    | Allowed
    | Stranded
    | Load
    | Unload
    | Activate
    | Flush
    | Drain
    | Resume
    | Configure
    | Beat
    | Stop
    | LoadDone
    | StepDone
    | MoveDone
    | SpillDone
    | SpillCleared
    | UnderstudyDone
    | RearmDone
    | SwitchPhase
    | SwitchDone
    | UnloadDone
)
