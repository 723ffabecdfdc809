"""`tierd doctor`: what this box can do, what it cannot, and what to do about that."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from tierd.backends.vkapi.loader import DRIVERS_INSTEAD
from tierd.cli.checks import drivers, folders, machine, rails, rights, served
from tierd.cli.checks.api_keys import api_keys
from tierd.cli.checks.aside import Aside
from tierd.cli.checks.finding import Finding, Verdict, problem
from tierd.cli.tables import standard_output
from tierd.errors import DeviceError, RequiredTierError
from tierd.settings import Settings
from tierd.tier.placing import Foreseen, foresee

_STYLES = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.PROBLEM: "red"}
_DRIVER_FAILS = (
    "update that driver, or have another one used alone: "
    f"{DRIVERS_INSTEAD[0]}=/usr/share/vulkan/icd.d/NAME.json; gpu.mode = 'off' goes without any"
)


def examine(settings: Settings) -> list[Finding]:
    """Look at all that serving takes. Opens the device, in another process, and makes and changes nothing."""
    if settings.gpu.mode == "off":
        graphics = [Finding(subject="GPU", text="gpu.mode is off: none is looked at")]
        foreseen: Mapping[str, Foreseen] | str = foresee(settings)
    else:
        with Aside(settings) as aside:
            graphics, foreseen = _graphics(settings, aside)
    return [
        machine.processor(),
        machine.cores(settings),
        machine.memory(settings),
        *graphics,
        folders.cache(),
        folders.state(settings.state),
        folders.admin_socket(settings.admin),
        api_keys(settings.server),
        *served.served(settings, foreseen),
    ]


def _graphics(settings: Settings, aside: Aside) -> tuple[list[Finding], Mapping[str, Foreseen] | str]:
    """Look at the GPU as far as one comes, and at where models would run, or why that is not known."""
    found: list[Finding] = []
    try:
        for finding in _device(aside):
            found.append(finding)
        there = found[-1].verdict is Verdict.OK
        of_rails = rails.absent() or (_rails(aside) if there else rails.untried())
        found.append(of_rails)
        foreseen: Mapping[str, Foreseen] = aside.ask("places") if settings.models else {}
    except DeviceError as error:
        return [*found, problem("Vulkan", str(error), _DRIVER_FAILS, DeviceError)], str(error)
    required = {settings.gpu.require, *map(settings.required, settings.models)} != {"none"}
    on_host = {model for model, place in foreseen.items() if place.outcome == "cpu"}
    lacks_rails = any(m.id in on_host and settings.required(m) == "rails" for m in settings.models)
    in_the_way = [
        _in_the_way(each) if (lacks_rails if each is of_rails else required and not there) else each
        for each in found
    ]
    return in_the_way, foreseen


def _device(aside: Aside) -> Iterator[Finding]:
    """Look at what is between tierd and a device; the last one is OK where one computes right."""
    cards = drivers.graphics_cards()
    yield drivers.cards_found(cards)
    loader = aside.ask("loader")
    yield loader
    if loader.verdict is Verdict.OK:
        yield drivers.drivers(cards)
        yield rights.rights(cards)
        yield from aside.ask("devices")
        yield aside.ask("witness")


def _rails(aside: Aside) -> Finding:
    try:
        finding: Finding = aside.ask("rails")
        return finding
    except DeviceError as error:
        return rails.failed(error)


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
