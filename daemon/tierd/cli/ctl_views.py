"""`tierd ctl`: answers of the admin API, for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tierd.http.admin import Slots, Status
from tierd.http.tier_views import PassesView, RegionsView, Session, SessionsView, TierView

_MIB = 1 << 20
_ANY_LENGTH = 1 << 16


def print_status(status: Status) -> None:
    """Print the answer of /status."""
    console = _console()
    _say(console, f"tierd {status.version}, up for {_duration(status.uptime_s)}")
    table = _table(
        "model", "outcome", right=("running", "paused", "waiting", "pages", "used", "cached", "free")
    )
    for model in status.models:
        pages = model.pages
        counts = (
            model.running, model.paused, model.waiting, pages.total, pages.used, pages.cached, pages.free,
        )  # fmt: skip
        table.add_row(escape(model.id), escape(model.outcome), *(f"{count:,}" for count in counts))
    for name in status.loading:
        table.add_row(escape(name), "loading")
    console.print(table)
    bank = status.bank
    if bank.limit:
        _say(
            console,
            f"host bank: {bank.entries:,} conversations in {_mib(bank.used)} of {_mib(bank.limit)} MiB, "
            f"{bank.dropped:,} dropped ({bank.dropped_positions:,} positions)",
        )


def print_slots(answer: Slots) -> None:
    """Print the answer of /slots; below it, which models are not on the GPU, and why."""
    table = _table(
        "model", "architecture", "outcome", "K/V", right=("context", "streams", "prompt", "output")
    )
    for slot in answer.slots:
        names = (slot.id + (" (default)" if slot.default else ""), slot.architecture, slot.outcome)
        counts = (slot.context, slot.streams, slot.max_prompt_tokens, slot.max_output_tokens)
        table.add_row(*map(escape, (*names, slot.kv_dtype)), *(f"{count:,}" for count in counts))
    console = _console()
    console.print(table)
    for slot in answer.slots:
        if slot.decline:
            _say(console, f"{slot.id} is not on the GPU: {slot.decline}")


def print_tier(tier: TierView) -> None:
    """Print the answer of /tier."""
    console = _console()
    if tier.device:
        memory = tier.memory
        backend = f" ({tier.backend})" if tier.backend else ""
        _say(console, f"{tier.device}{backend}")
        if tier.products:
            _say(console, f"products are {tier.products}")
        _say(console, f"{_mib(memory.used)} of {_mib(memory.budget)} MiB used, {_mib(memory.free)} MiB free")
    else:
        _say(console, f"no GPU: {tier.reason}" if tier.reason else "no GPU is in use")
    if tier.faults:
        times = "once" if tier.faults == 1 else f"{tier.faults:,} times"
        _say(console, f"given up {times} in the middle of work, last for this: {tier.fault}")
    if tier.retry_s is not None:
        _say(console, f"it is tried again in {tier.retry_s:,.0f} s")
    if tier.reservations:
        table = _table("model", right=("MiB",))
        for model, count in tier.reservations.items():
            table.add_row(escape(model), _mib(count))
        console.print(table)


def print_regions(answer: RegionsView) -> None:
    """Print the answer of /regions."""
    table = _table("model", "region", "state", "of", right=("positions", "last used"))
    for model in answer.models:
        for region in model.regions:
            claim = "" if region.claim is None else f"claim {region.claim}"
            used = "never" if region.age_s is None else f"{region.age_s:,.1f} s ago"
            names = (model.id, str(region.region), region.state, region.request or claim)
            table.add_row(*map(escape, names), f"{region.positions:,}", used)
    _print_table(table, "no model has regions on a GPU")


def print_sessions(answer: SessionsView) -> None:
    """Print the answer of /sessions; below it, why streams are on the CPU."""
    table = _table("request", "model", "K/V", "state", right=("positions", "prompt", "generated"))
    for session in answer.sessions:
        names = (session.id, session.model, _place(session), _state(session))
        counts = (session.positions, session.prompt, session.generated)
        table.add_row(*map(escape, names), *(f"{count:,}" for count in counts))
    console = _print_table(table, "no stream is running")
    reasons = {session.reason: session.words for session in answer.sessions if session.reason}
    for reason, words in sorted(reasons.items()):
        _say(console, f"{reason}: {words}")


def print_passes(answer: PassesView) -> None:
    """Print the answer of /passes."""
    table = _table("model", "outcome", "reason", "words", right=("passes",))
    for model in answer.models:
        for row in model.passes:
            names = (model.id, model.outcome, row.reason, row.words)
            table.add_row(*map(escape, names), f"{row.count:,}")
    _print_table(table, "nothing that was meant for a GPU has run on the CPU")


def _place(session: Session) -> str:
    """Say where a stream's K/V is, and why that is the host."""
    if session.region is not None:
        return f"region {session.region}"
    return f"host ({session.reason})" if session.reason else "host"


def _state(session: Session) -> str:
    """Say what a stream waits for, in a word or two."""
    states = [word for word, holds in (("moving", session.moving), ("paused", session.paused)) if holds]
    return ", ".join(states) or "running"


def _console() -> Console:
    """Return standard output, whose lines may have any length where it is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _ANY_LENGTH
    return console


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _print_table(table: Table, when_empty: str) -> Console:
    console = _console()
    console.print(table if table.row_count else when_empty)
    return console


def _mib(count: int) -> str:
    return f"{count / _MIB:,.1f}"


def _table(*left: str, right: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right")
    return table


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
