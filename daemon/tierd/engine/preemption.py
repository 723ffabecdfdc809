"""Who makes room where pages of the host run out: the last stream in the order, which goes on later.

So it does for who waits with a lower priority. Its rows go to the bank, where that has room; else it keeps
its tokens and is fed them again, as far as the prefix cache has them no more. Then it waits among those that
come back, in its place. The first stream never makes room for those behind it, and alone each has what it
needs: so somebody always goes on, and in the end everybody. On a device each stream has a region of its own,
as large as it may ever be: there it makes room for a lower priority alone.
"""

from __future__ import annotations

from tierd.core import Sequence
from tierd.engine.flights import flights
from tierd.kv.paged import PagedHome
from tierd.kv.saved import evacuate
from tierd.slot import Slot, exile
from tierd.tier.device_home import DeviceHome


def provide(slot: Slot) -> set[Sequence]:
    """See to it that running streams have pages for their next rows; return who must do without any row.

    One at a time is preempted: what it gives up may do. It gets no rows from then on, and its own are brought
    out once no step is at work on them.
    """
    _go_on(slot)
    while True:
        dry = _dry(slot)
        if not dry or slot.preempting is not None:
            break
        slot.preempting = next((last for last in reversed(slot.running[1:]) if not last.moves), None)
        if slot.preempting is None:  # what leaves, or comes, has to be waited for
            break
        _go_on(slot)
    return dry if slot.preempting is None else dry | {slot.preempting}


def _dry(slot: Slot) -> set[Sequence]:
    """Grant running streams pages for their next rows; return for whom there are none."""
    ahead = flights(slot) if slot.steps else {}
    return {
        sequence
        for sequence in slot.running
        if not (sequence.paused or sequence.moves)
        and not slot.home.grow(sequence, sequence.fed + (ahead[sequence].rows if ahead else 0) + 1)
    }


def give_way(slot: Slot) -> bool:
    """Preempt a stream for who is next and finds no place; return whether.

    It is the last of those behind it that have a lower priority; none where it would find no place though all
    of them went. Called when all who fit are admitted.
    """
    first = slot.first
    if first is None or slot.preempting is not None:
        return False
    lower = [
        sequence
        for sequence in slot.running
        if sequence.rank > first.rank and sequence.request.priority > first.request.priority
    ]
    last = next((last for last in reversed(lower) if not last.moves), None)
    if last is None or not _would_do(slot, first, lower):
        return False
    slot.preempting = last
    _go_on(slot)
    return True


def _would_do(slot: Slot, first: Sequence, lower: list[Sequence]) -> bool:
    """Whether who is next would find a place if these went. On a device: who lacks no more than a place."""
    if isinstance(slot.home, PagedHome):
        return slot.home.could_admit(first, lower)
    full = slot.occupied - len(slot.returning) >= slot.settings.streams
    return full and len(first.tokens) <= slot.longest


def _go_on(slot: Slot) -> None:
    """Bring the rows of the stream out that is preempted, once no step and no move is at work on them."""
    sequence = slot.preempting
    if sequence is None or any(sequence in step.sequences for step in slot.steps):
        return
    if not sequence.moves:
        _bring_out(slot, sequence)


def _bring_out(slot: Slot, sequence: Sequence) -> None:
    home = slot.home
    in_region = isinstance(home, DeviceHome)

    def out(moved: bool) -> None:
        if slot.preempting is sequence:
            slot.preempting = None
        if sequence not in slot.running or (in_region and slot.lost):
            return
        slot.preemptions["banked" if moved or not sequence.fed else "dropped"] += 1
        home.let_go(sequence, written=False)
        exile(slot, sequence, sequence.passes, slot.returning)
        sequence.preemptions += 1

    if home.bank is None:
        out(False)
    else:
        # Others find rows in pages, as long as these are there; a region's would go to the bank once more.
        evacuate(home, home.bank, sequence, out, keep=in_region and home.keeps)
