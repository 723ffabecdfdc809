"""What is kept of conversations over a restart: rounds in which all that is parked anywhere goes to files.

In a round the rows of one conversation after another are copied from their pages to the bank, in slices
between steps, and from there to a file by the spill's thread; those used last come first. What was written in
an earlier round is not written again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from tierd.kv.bank import Bank, Banked
from tierd.kv.home import Parked
from tierd.kv.moves import Move
from tierd.kv.sizing import mib
from tierd.settings import StateSettings
from tierd.slot import Slot

log = logging.getLogger(__name__)


class Keeper:
    """Has parked conversations written, by interval and when the engine stops. The engine thread's own.

    finished: whether the last round is over; from the start where nothing is kept over a restart.
    """

    def __init__(
        self, settings: StateSettings, bank: Bank | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bank = bank if bank is not None and bank.saves else None
        self.finished = self._bank is None
        self._settings = settings
        self._clock = clock
        self._due = clock() + settings.interval_s if settings.interval_s else None
        self._until: float | None = None  # when the last round is given up
        self._going = self._last = False
        self._moving: Banked | None = None  # what a conversation's rows are being copied to
        self._void = False  # it is not to be kept
        self._writing: Banked | None = None
        self._failed = 0  # conversations that had no room in this round

    @property
    def deadline(self) -> float | None:
        """When something is to be done though no message comes, monotonic seconds; None: never."""
        if self.finished:
            return None
        due = None if self._going else self._due
        return min((end for end in (due, self._until) if end is not None), default=None)

    def ask(self) -> None:
        """Let a round begin at once."""
        self._due = self._clock()

    def stop(self) -> None:
        """Let the last round take no longer than the settings say."""
        self._until = self._clock() + self._settings.save_s

    def forget(self) -> None:
        """Do not keep what is on its way to the bank."""
        self._void = True

    def step(self, slots: Iterable[Slot], *, last: bool) -> bool:
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
            if not last and (self._due is None or now < self._due):
                return False
            self._begin(self._bank, last=last)
        slots = list(slots)
        moves = self._go_on(self._bank, slots)
        if last and not (self._going or self.finished):  # what is over had begun before the last round
            self._begin(self._bank, last=True)
            moves = self._go_on(self._bank, slots)
        return moves

    def _begin(self, bank: Bank, *, last: bool) -> None:
        self._going, self._last = True, last
        self._due = None
        self._failed = 0
        bank.begin_to_save()

    def _go_on(self, bank: Bank, slots: Iterable[Slot]) -> bool:
        if self._moving is not None or not self._is_written(bank):
            return False
        if any(slot.serves and self._bring_next(bank, slot) for slot in slots):
            return True
        if not bank.at_work:
            self._end(bank)
        return False

    def _is_written(self, bank: Bank) -> bool:
        """Whether the file of what was brought out last is there, or will never be."""
        entry = self._writing
        if entry is None:
            return True
        if not (entry.dropped or entry.unwritable or entry.path is not None):
            return False
        self._writing = None
        self._failed += entry.path is None
        bank.rest(entry)
        return True

    def _bring_next(self, bank: Bank, slot: Slot) -> bool:
        """Have a slot's next conversation brought out; return whether there was one to bring."""
        while (parked := slot.home.next_to_save()) is not None:
            if self._bring_out(bank, slot, parked):
                return True
        return False

    def _bring_out(self, bank: Bank, slot: Slot, parked: Parked) -> bool:
        """Have a conversation's rows copied to the bank, unless they are there or have no room there."""
        home, tokens = slot.home, parked.tokens
        if bank.find(slot.id, home.origin, tokens, minimum=len(tokens)) is not None:
            return False
        row_bytes = home.executor.row_bytes
        entry = bank.open(slot.id, home.origin, row_bytes, len(tokens), live=False, used=parked.used)
        if entry is None:
            self._failed += 1
            return False

        def out(moved: bool) -> None:
            self._moving = None
            if moved and parked.stands() and not self._void:
                bank.keep(entry, tokens)
                self._writing = entry
            else:
                bank.close(entry)

        self._moving, self._void = entry, False
        home.moves.append(Move(None, parked.pages, entry.layers, 0, len(tokens), inward=False, finish=out))
        return True

    def _end(self, bank: Bank) -> None:
        bank.end_saving()
        self._going, self.finished = False, self._last
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
        log.warning(
            "state.dir: not all conversations were written within state.save_s = %g s; those used last were",
            self._settings.save_s,
        )
