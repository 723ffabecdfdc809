"""Who is in the scratch region: there the device computes prompts of streams whose K/V is on the host."""

from __future__ import annotations

from collections.abc import Hashable

from tierd.core import PassReason


class Scratch:
    """What a region of so many positions holds. Pure: no executor, no device.

    A session is any owner of a prompt, but None. Tell of each of its chunks, in order, where it runs: `fed`
    in the region, `passed` on the CPU; `leave` when its prompt is over or it ends.
    holder: whose rows are in the region, None for nobody's. rows: its first positions that are there.
    """

    def __init__(self, positions: int) -> None:
        self.holder: Hashable | None = None
        self.rows = 0
        self._positions = positions
        self._behind = False  # some of the holder's rows are on the host alone: it may be superseded
        self._superseded: set[Hashable] = set()

    def refusal(
        self,
        session: Hashable,
        start: int,
        stop: int,
        *,
        pinned_off: bool = False,
        prefill_continues: bool = True,
        rewinds: bool = True,
    ) -> PassReason | None:
        """Return why positions start to stop - 1 of a session's prompt cannot run here now, None if they can.

        pinned_off: the device's own streams come first. prefill_continues, rewinds: see Executor.
        """
        if stop > self._positions:
            return PassReason.CAP
        if pinned_off:
            return PassReason.PINNED_OFF
        if start and session in self._superseded:
            return PassReason.SUPERSEDED
        if self.holder not in (None, session) and not self._behind:
            return PassReason.BUSY
        if not start:
            return None
        if not prefill_continues:
            return PassReason.CONTINUATION
        rows = self.rows if session == self.holder else 0
        if start > rows:
            return PassReason.GAP
        return PassReason.REWIND if start < rows and not rewinds else None

    def fed(self, session: Hashable, start: int, stop: int) -> None:
        """Note that a chunk of the session runs here, as `refusal` allows.

        Raises ValueError where the region does not hold what comes before it, or is another's.
        """
        reason = self.refusal(session, start, stop)
        if reason is not None:
            raise ValueError(
                f"positions {start} to {stop} cannot be fed to the scratch region: {reason.words}"
            )
        if session != self.holder and self.holder is not None:
            self._superseded.add(self.holder)
        self._superseded.discard(session)
        self.holder, self.rows, self._behind = session, stop, False

    def passed(self, session: Hashable, start: int) -> None:
        """Note that a chunk of the session from `start` on runs on the CPU; the region lacks its rows."""
        if session == self.holder:
            self.rows, self._behind = min(self.rows, start), True

    def leave(self, session: Hashable) -> None:
        """Forget a session; the region is free if it was in it."""
        self._superseded.discard(session)
        if session == self.holder:
            self.holder, self.rows, self._behind = None, 0, False
