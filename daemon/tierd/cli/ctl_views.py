"""`tierd ctl`: answers of the admin API, for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.markup import escape

from tierd.cli.ctl_progress import share
from tierd.cli.tables import columns, print_table, say, standard_output
from tierd.engine.operation import RUNNING
from tierd.http.admin.app import Slots, Status
from tierd.http.admin.operations import OperationList
from tierd.http.tier_views import PassesView, RegionsView, Session, SessionsView, Switch, TierView

_MIB = 1 << 20


def print_status(status: Status) -> None:
    """Print the answer of /status."""
    console = standard_output()
    say(console, f"tierd {status.version}, up for {_duration(status.uptime_s)}")
    if status.draining:
        say(console, "draining: no request is admitted")
    if status.restart_needed:
        say(console, f"a restart is needed for {', '.join(status.restart_needed)}")
    table = columns(
        "model", "outcome", "seat", right=("running", "paused", "waiting", "pages", "used", "cached", "free")
    )
    for model in status.models:
        pages = model.pages
        counts = (
            model.running, model.paused, model.waiting, pages.total, pages.used, pages.cached, pages.free,
        )  # fmt: skip
        names = (model.id, model.outcome, model.seat)
        table.add_row(*map(escape, names), *(f"{count:,}" for count in counts))
    for name in status.loading:
        table.add_row(escape(name), "loading")
    for name in status.unloaded:
        table.add_row(escape(name), "not loaded")
    console.print(table)
    if status.switch is not None:
        say(console, _switch(status.switch))
    if status.switches:
        say(console, f"switches so far: {status.switches:,}")
    bank = status.bank
    if bank.limit:
        say(
            console,
            f"host bank: {bank.entries:,} conversations in {_mib(bank.used)} of {_mib(bank.limit)} MiB, "
            f"{bank.dropped:,} dropped ({bank.dropped_positions:,} positions)",
        )


def print_slots(answer: Slots) -> None:
    """Print the answer of /slots; below it, which models are not on the GPU, or not now, and why."""
    table = columns(
        "model", "architecture", "outcome", "K/V", right=("context", "streams", "prompt", "output")
    )
    for slot in answer.slots:
        names = (slot.id + (" (default)" if slot.default else ""), slot.architecture, slot.outcome)
        counts = (slot.context, slot.streams, slot.max_prompt_tokens, slot.max_output_tokens)
        table.add_row(*map(escape, (*names, slot.kv_dtype)), *(f"{count:,}" for count in counts))
    console = standard_output()
    console.print(table)
    for slot in answer.slots:
        if slot.seat == "away":
            say(console, f"{slot.id} is away: nothing of it is on the GPU until its turn comes")
        elif slot.placement is not None:
            say(console, _rails(slot.id, slot.placement))
        if slot.decline:
            whole = "" if slot.placement is None else "whole "
            say(console, f"{slot.id} is not {whole}on the GPU: {slot.decline}")


def print_tier(tier: TierView) -> None:
    """Print the answer of /tier."""
    console = standard_output()
    if tier.device:
        memory = tier.memory
        backend = f" ({tier.backend})" if tier.backend else ""
        say(console, f"{tier.device}{backend}")
        if tier.products:
            say(console, f"products are {tier.products}")
        say(console, f"{_mib(memory.used)} of {_mib(memory.budget)} MiB used, {_mib(memory.free)} MiB free")
    else:
        say(console, f"no GPU: {tier.reason}" if tier.reason else "no GPU is in use")
    if tier.faults:
        times = "once" if tier.faults == 1 else f"{tier.faults:,} times"
        say(console, f"given up {times} in the middle of work, last for this: {tier.fault}")
    if tier.retry_s is not None:
        say(console, f"it is tried again in {tier.retry_s:,.0f} s")
    table = columns("model", "where", right=("MiB",))
    for where, models in (("on the GPU", tier.reservations), ("away", tier.away)):
        for model, count in models.items():
            table.add_row(escape(model), where, _mib(count))
    if table.row_count:
        console.print(table)


def print_regions(answer: RegionsView) -> None:
    """Print the answer of /regions."""
    table = columns("model", "region", "state", "of", right=("positions", "last used"))
    for model in answer.models:
        for region in model.regions:
            claim = "" if region.claim is None else f"claim {region.claim}"
            used = "never" if region.age_s is None else f"{region.age_s:,.1f} s ago"
            names = (model.id, str(region.region), region.state, region.request or claim)
            table.add_row(*map(escape, names), f"{region.positions:,}", used)
    print_table(table, "no model has regions on a GPU")


def print_sessions(answer: SessionsView) -> None:
    """Print the answer of /sessions; below it, why streams are on the CPU, and what others wait for."""
    table = columns("request", "model", "K/V", "state", right=("positions", "prompt", "generated"))
    for session in answer.sessions:
        names = (session.id, session.model, _place(session), _state(session))
        counts = (session.positions, session.prompt, session.generated)
        table.add_row(*map(escape, names), *(f"{count:,}" for count in counts))
    console = print_table(table, "no stream is running")
    reasons = {session.reason: session.words for session in answer.sessions if session.reason}
    for reason, words in sorted(reasons.items()):
        say(console, f"{reason}: {words}")
    if any(session.away for session in answer.sessions):
        say(console, "away: it waits for its model to be back on the GPU")


def print_passes(answer: PassesView) -> None:
    """Print the answer of /passes."""
    table = columns("model", "outcome", "reason", "words", right=("passes",))
    for model in answer.models:
        for row in model.passes:
            names = (model.id, model.outcome, row.reason, row.words)
            table.add_row(*map(escape, names), f"{row.count:,}")
    print_table(table, "nothing that was meant for a GPU has run on the CPU")


def print_operations(answer: OperationList) -> None:
    """Print the answer of /operations; below it, why some of them failed."""
    table = columns("operation", "model", "state", "phase", right=("done", "s"))
    for view in answer.operations:
        done = share(view) if view.state == RUNNING else ""
        names = (view.id, view.model, view.state, view.phase)
        table.add_row(*map(escape, names), done, f"{view.seconds:,.1f}")
    console = print_table(table, "nothing that takes long was asked for")
    for view in answer.operations:
        if view.error:
            say(console, f"{view.id}: {view.error}")


def _rails(model: str, placement: list[str]) -> str:
    """Say which layers' matmuls are on the GPU."""
    there = placement.count("device")
    runs = "".join("#" if place == "device" else "." for place in placement)
    return f"{model}: matmuls of {there} of {len(placement)} layers are on the GPU for prompts: {runs}"


def _place(session: Session) -> str:
    """Say where a stream's K/V is, and why that is the host."""
    if session.region is not None:
        return f"region {session.region}"
    if session.away:
        return "bank"
    return f"host ({session.reason})" if session.reason else "host"


def _state(session: Session) -> str:
    """Say what a stream waits for, in a word or two."""
    moving = session.moving and not session.away
    states = {"away": session.away, "moving": moving, "paused": session.paused}
    return ", ".join(word for word, holds in states.items() if holds) or "running"


def _switch(switch: Switch) -> str:
    """Say which models change places, and how far they are."""
    comes = f"{switch.incoming} comes" if switch.incoming else ""
    goes = f"{', '.join(switch.outgoing)} {'go' if len(switch.outgoing) > 1 else 'goes'}"
    who = ", ".join(part for part in (comes, goes if switch.outgoing else "") if part)
    return f"a switch is under way: {who}; {switch.phase} after {switch.seconds:,.1f} s"


def _mib(count: int) -> str:
    return f"{count / _MIB:,.1f}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hours}:{minutes:02}:{seconds:02}"


# By the name of the command and of the route: the shape of the answer, and what prints it.
VIEWS: dict[str, tuple[type[Any], Callable[[Any], None]]] = {
    "status": (Status, print_status),
    "slots": (Slots, print_slots),
    "tier": (TierView, print_tier),
    "regions": (RegionsView, print_regions),
    "sessions": (SessionsView, print_sessions),
    "passes": (PassesView, print_passes),
}
