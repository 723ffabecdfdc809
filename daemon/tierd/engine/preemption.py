"""Who makes room where the pages run out: the last stream in the order, which goes on later.

Its rows go to the bank, where that has room; else it keeps its tokens and is fed them again, as far as the
prefix cache does not have them any more. Then it waits among those that come back, in its place. The first
stream is never the last of several, and alone each has what it needs: so somebody always goes on, and in the
end everybody.
"""

from __future__ import annotations

from tierd.core import Sequence
from tierd.engine.flights import flights
from tierd.kv.saved import evacuate
from tierd.slot import Slot, exile


def provide(slot: Slot) -> set[Sequence]:
    """See to it that running streams have pages for their next rows; return who must do without any row.

    One at a time is preempted: what it gives up may do. It gets no rows from then on, and its own are brought
    out once no step is at work on them.
    """
    _go_on(slot)
    while True:
        dry = {
            sequence
            for sequence, flight in flights(slot).items()
            if not (
                sequence.paused or sequence.moves or slot.home.grow(sequence, sequence.fed + flight.rows + 1)
            )
        }
        if not dry or slot.preempting is not None:
            break
        slot.preempting = next((last for last in reversed(slot.running[1:]) if not last.moves), None)
        if slot.preempting is None:  # what leaves, or comes, has to be waited for
            break
        _go_on(slot)
    return dry if slot.preempting is None else dry | {slot.preempting}


def _go_on(slot: Slot) -> None:
    """Bring the rows of the stream out that is preempted, once no step and no move is at work on them."""
    sequence = slot.preempting
    if sequence is None or any(sequence in step.sequences for step in slot.steps):
        return
    if sequence not in slot.running:
        slot.preempting = None
    elif not sequence.moves:
        _bring_out(slot, sequence)


def _bring_out(slot: Slot, sequence: Sequence) -> None:
    def out(moved: bool) -> None:
        slot.preempting = None
        if sequence not in slot.running:
            return
        slot.preemptions["banked" if moved or not sequence.fed else "dropped"] += 1
        slot.home.let_go(sequence, written=False)
        exile(slot, sequence, sequence.passes, slot.returning)
        sequence.preemptions += 1

    if slot.home.bank is None:
        out(False)
    else:
        evacuate(slot.home, slot.home.bank, sequence, out, keep=False)
