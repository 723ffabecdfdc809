"""`tierd doctor`: what this box can do, what it cannot, and what to do about that."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import closing

from rich.markup import escape
from rich.table import Table

from tierd.cli.checks import drivers, folders, machine, rails, rights, served, vulkan
from tierd.cli.checks.finding import Finding, Verdict
from tierd.cli.tables import standard_output
from tierd.errors import RequiredTierError
from tierd.settings import Settings
from tierd.tier.availability import Availability

_STYLES = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.PROBLEM: "red"}


def examine(settings: Settings) -> list[Finding]:
    """Look at all that serving takes. Opens the device, and makes and changes nothing."""
    return [
        machine.processor(),
        machine.cores(settings),
        machine.memory(settings),
        *_graphics(settings),
        rails.kompute(),
        folders.cache(),
        folders.state(settings.state),
        folders.admin_socket(settings.admin),
        *served.served(settings),
    ]


def _graphics(settings: Settings) -> list[Finding]:
    """Look at the GPU, from the loader on as far as one comes."""
    cards = drivers.graphics_cards()
    found = [drivers.cards_found(cards), vulkan.loader()]
    with closing(Availability(settings.gpu)) as availability:
        verdict = availability.backend_available("resident")
        if found[-1].verdict is Verdict.OK:
            found += [drivers.drivers(cards), rights.rights(), *vulkan.devices(settings.gpu, cards)]
            found.append(vulkan.witness(verdict))
        required = {settings.gpu.require, *map(settings.required, settings.models)} != {"none"}
        return list(map(_in_the_way, found)) if required and verdict.device is None else found


def _in_the_way(finding: Finding) -> Finding:
    """Return what is worth knowing of a GPU as a problem, since one is required and there is none."""
    if finding.verdict is not Verdict.NOTE:
        return finding
    return dataclasses.replace(finding, verdict=Verdict.PROBLEM, error=RequiredTierError)


def check(findings: Sequence[Finding]) -> None:
    """Raise what `tierd serve` would end with, if it would."""
    for finding in findings:
        if finding.error is not None:
            remedy = f"; {finding.remedy}" if finding.remedy else ""
            raise finding.error(f"{finding.subject}: {finding.text}{remedy}")


def document(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """Return the findings as `--json` prints them."""
    return [
        {"subject": each.subject, "verdict": each.verdict, "text": each.text, "remedy": each.remedy}
        for each in findings
    ]


def print_findings(findings: Sequence[Finding]) -> None:
    """Print the findings for people, the remedy of each below it."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for each in findings:
        style = _STYLES[each.verdict]
        table.add_row(f"[{style}]{each.verdict}[/{style}]", escape(each.subject), escape(each.text))
        if each.remedy:
            table.add_row("", "", escape(f"-> {each.remedy}"))
    standard_output().print(table)
