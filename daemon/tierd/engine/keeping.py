"""What is kept of conversations over a restart: rounds in which all that is parked anywhere goes to files.

In a round the rows of one conversation after another are copied from their pages to the bank, in slices
between steps, and from there to a file by the spill's thread; those used last come first. What was written in
an earlier round is not written again; what had no room then is tried again. However many there are, no turn
looks through more of them than a slice of time allows.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from tierd.kv.bank import Bank, Banked
from tierd.kv.home import Home, Parked
from tierd.kv.moves import Move
from tierd.kv.sizing import mib
from tierd.settings import StateSettings
from tierd.slot import Slot

log = logging.getLogger(__name__)

# How long conversations may be looked through in one turn.
_SLICE_S = 0.002


@dataclass(frozen=True, slots=True, eq=False)
class _Next:
    """A conversation that is to be saved, and the home in which it lay when that was said."""

    slot: Slot
    home: Home
    parked: Parked


class Keeper:
    """Has parked conversations written, by interval and when the engine stops. The engine thread's own.

    finished: whether the last round is over; from the start where nothing is kept over a restart. problem:
    why the round before did not keep all for which there is room, "" when it did.
    """

    def __init__(
        self, settings: StateSettings, bank: Bank | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bank = bank if bank is not None and bank.saves else None
        self.finished = self._bank is None
        self.problem = ""
        self._settings = settings
        self._clock = clock
        self._due = clock() + settings.interval_s if settings.interval_s else None
        self._until: float | None = None  # when the last round is given up
        self._asked = False  # for a round at once
        self._going = self._last = False
        self._looking = False  # a slice of time was over before all had been looked through
        self._moving: Banked | None = None  # what a conversation's rows are being copied to
        self._writing: tuple[Banked, Parked] | None = None
        self._held: _Next | None = None  # waits for room that what is being written will leave
        self._missed: deque[Parked] = deque()  # in this round, for want of room; those used last first
        self._putting_back = False
        self._failed = 0  # how many these were

    @property
    def deadline(self) -> float | None:
        """When something is to be done though no message comes, monotonic seconds; None: never."""
        if self.finished:
            return None
        if self._looking or (self._asked and not self._going):
            return self._clock()
        due = None if self._going else self._due
        return min((end for end in (due, self._until) if end is not None), default=None)

    @property
    def settled(self) -> bool:
        """Whether no round is going on or asked for."""
        return self.finished or not (self._going or self._asked)

    def left(self, slots: Iterable[Slot]) -> int:
        """Return how many conversations are not in files yet, as far as that is known."""
        if self._bank is None:
            return 0
        return self._bank.unfiled + sum(slot.home.unsaved for slot in slots if slot.serves)

    def ask(self) -> None:
        """Let a round begin at once, or after the one that goes on."""
        self._asked = True

    def stop(self) -> None:
        """Let what is left to be written take no longer than the settings say.

        One round begins at once, for what is still at work may not end in time; the last one is for the rest.
        """
        self._until = self._clock() + self._settings.save_s
        self.ask()

    def step(self, slots: Collection[Slot], *, last: bool) -> bool:
        """Do what has become possible. Returns whether there are rows to be moved by that.

        last: nothing else will happen, so that all there is can be written for good.
        """
        if self._bank is None or self.finished:
            return False
        now = self._clock()
        if self._until is not None and now >= self._until:
            self._give_up()
            return False
        if not self._going:
            if not (last or self._asked) and (self._due is None or now < self._due):
                return False
            self._begin(self._bank, last=last)
        moves = self._go_on(self._bank, slots)
        if last and not (self._going or self.finished):  # what is over had begun before the last round
            self._begin(self._bank, last=True)
            moves = self._go_on(self._bank, slots)
        return moves

    def _begin(self, bank: Bank, *, last: bool) -> None:
        self._going, self._last = True, last
        self._due, self._asked = None, False
        self._failed = 0
        bank.filing.begin_to_save()

    def _go_on(self, bank: Bank, slots: Collection[Slot]) -> bool:
        """Have the next conversation brought out once the one before is written; return whether one is."""
        self._looking = False
        if self._moving is not None or not self._is_written(bank):
            return False
        end = self._clock() + _SLICE_S
        while not self._putting_back and (following := self._held or self._next(slots)) is not None:
            self._held = None
            if self._is_to_be_saved(bank, following, slots):
                if self._bring_out(bank, following):
                    return True
                if bank.filing.at_work:
                    self._held = following
                    return False
                self._miss(following.parked)
            if self._clock() >= end:
                self._looking = True
                return False
        if bank.filing.at_work:
            return False
        self._putting_back = True
        while self._missed:
            self._missed.popleft().put_back()
            if self._clock() >= end:
                self._looking = True
                return False
        self._end(bank)
        return False

    def _is_written(self, bank: Bank) -> bool:
        """Whether the file of what was brought out last is there, or will never be."""
        if self._writing is None:
            return True
        entry, parked = self._writing
        if not (entry.dropped or entry.closing or entry.unwritable or entry.path is not None):
            return False
        self._writing = None
        if entry.unwritable:
            self._miss(parked)
        bank.rest(entry)
        return True

    def _next(self, slots: Collection[Slot]) -> _Next | None:
        """Return the next conversation; those come last whose rows wait until a device has done its step."""
        at_work = {slot.executor.name for slot in slots if slot.steps}
        for slot in sorted(slots, key=lambda slot: slot.executor.name in at_work):
            parked = slot.home.next_to_save() if slot.serves else None
            if parked is not None:
                return _Next(slot, slot.home, parked)
        return None

    def _is_to_be_saved(self, bank: Bank, it: _Next, slots: Collection[Slot]) -> bool:
        """Whether a conversation is still where it was, and nowhere else."""
        stands = it.slot in slots and it.slot.serves and it.slot.home is it.home and it.parked.stands()
        return stands and not bank.holds(it.slot.id, it.home.origin, it.parked.tokens)

    def _bring_out(self, bank: Bank, it: _Next) -> bool:
        """Have a conversation's rows copied to the bank, if there is room that costs no other its own."""
        home, parked = it.home, it.parked
        entry = bank.open(
            it.slot.id,
            home.origin,
            home.executor.row_bytes,
            len(parked.tokens),
            live=False,
            used=parked.used,
            drops=False,
        )
        if entry is None:
            return False

        def out(moved: bool) -> None:
            self._moving = None
            if moved and parked.stands():
                bank.keep(entry, parked.tokens)
                self._writing = entry, parked
            else:
                bank.close(entry)

        self._moving = entry
        home.moves.append(
            Move(None, parked.pages, entry.layers, 0, len(parked.tokens), inward=False, finish=out)
        )
        return True

    def _miss(self, parked: Parked) -> None:
        self._failed += 1
        self._missed.append(parked)

    def _end(self, bank: Bank) -> None:
        bank.filing.end_saving()
        self._going, self.finished = False, self._last
        self.problem = bank.filing.problem
        self._putting_back = False
        if self._settings.interval_s:
            self._due = self._clock() + self._settings.interval_s
        if self._failed:
            log.warning(
                "state.dir: no room for %d conversations; see state.max_mb and kv.bank_mb", self._failed
            )
        if self._last:
            log.info("state.dir: kept %d conversations, %s", bank.filed, mib(bank.spilled))

    def _give_up(self) -> None:
        self.finished = True
        self.problem = too_late(self._settings.save_s)
        log.warning("state.dir: %s", self.problem)


def too_late(save_s: float) -> str:
    """Say what it means that the time was too short."""
    return f"not all conversations were written within state.save_s = {save_s:g} s, used last first"
