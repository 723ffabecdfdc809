"""Write the reference of the settings, docs/settings.md, from their manual and their table.

Usage: python tools/make_settings_page.py

What stands above a setting in config/tierd.toml is its text; settings.py says what it must be.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tierd.settings import Settings

REPOSITORY = Path(__file__).resolve().parent.parent
MANUAL = REPOSITORY / "config" / "tierd.toml"
PLACE = REPOSITORY / "docs" / "settings.md"
HEAD = """\
# Settings

Made by `make pages` from `config/tierd.toml` and `daemon/tierd/settings.py`.

tierd reads one file of [TOML](https://toml.io), named by `tierd serve --config FILE` or in the environment
variable `TIERD_CONFIG`. Every setting has the value shown here unless the file has another. One that tierd
does not know is an error, and so is a wrong type or value: tierd names it and ends with code 2.
`tierd doctor` looks at all of them.

At SIGHUP (`systemctl reload tierd`) the file is read again. Settings marked as live change then, others with
a restart; the log says which have.
"""
# What no value of a type can be where it is checked at all.
WRONG: dict[object, object] = {int: -(10**9), float: -1e9, str: "\0", tuple[str, ...]: ("\0",)}


@dataclass
class Entry:
    """Settings that are explained together, as (name, default in TOML), and the lines that do so."""

    text: list[str]
    settings: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Section:
    """One table. heading: as it is written, [name] or [[name]]. text: what stands above it."""

    heading: str
    text: list[str]
    entries: list[Entry] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The table's name."""
        return self.heading.strip("[]")


def sections() -> Iterator[Section]:
    """Yield the manual's tables. What is above the first one is not of any."""
    section, text = Section("", []), list[str]()
    for line in MANUAL.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            text.append(line[1:].strip())
        elif line.startswith("["):
            if section.heading:
                yield section
            section, text = Section(line, text), []
        elif assigned := re.fullmatch(r"(\w+) = (.*)", line):
            if text or not section.entries:
                section.entries.append(Entry(text))
                text = []
            section.entries[-1].settings.append((assigned[1], assigned[2]))
        elif not section.heading:
            text = []
    yield section


def table_of(section: str) -> type[typing.Any]:
    """Return the dataclass whose fields are a table's settings."""
    kind = typing.get_type_hints(Settings)[section]
    table: type[typing.Any] = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind
    return table


def row_of(table: type[typing.Any], name: str) -> dataclasses.Field[typing.Any]:
    """Return a field of a dataclass."""
    (row,) = (row for row in dataclasses.fields(table) if row.name == name)
    return row


def is_live(section: str, name: str) -> bool:
    """Whether a setting may change while tierd runs."""
    return any("live" in row.metadata for row in (row_of(Settings, section), row_of(table_of(section), name)))


def demand(section: str, name: str) -> str:
    """Say what a setting must be, "" where any value of its type will do."""
    table = table_of(section)
    row, wrong = row_of(table, name), WRONG.get(typing.get_type_hints(table)[name])
    check = row.metadata.get("check")
    if check is None or wrong is None:
        return ""
    empty = ', or ""' if isinstance(wrong, str) and not check("") else ""
    return f"It must {check(wrong)}{empty}."


def page() -> str:
    """Return the reference as Markdown."""
    return HEAD + "".join(part for section in sections() for part in told(section))


def told(section: Section) -> Iterator[str]:
    """Yield a table's part of the page."""
    yield f"\n## {section.heading}\n"
    if section.text:
        yield f"\n{plain(section.text)}\n"
    for entry in section.entries:
        names = ", ".join(f"`{name}`" for name, _ in entry.settings)
        yield f"\n### {names}\n\n```toml\n"
        yield from (f"{name} = {default}\n" for name, default in entry.settings)
        yield f"```\n\n{plain(entry.text)}\n"
        if more := list(facts(section, entry)):
            yield f"\n{plain(more)}\n"


def facts(section: Section, entry: Entry) -> Iterator[str]:
    """Yield what the table of settings says of an entry's."""
    names = [name for name, _ in entry.settings]
    demands = {name: said for name in names if (said := demand(section.name, name))}
    if len(names) == 1:
        yield from demands.values()
    else:
        yield from (f"`{name}` {said.removeprefix('It ')}" for name, said in demands.items())
    if all(is_live(section.name, name) for name in names):
        yield "Live: it changes when the file is read again."


def plain(text: list[str]) -> str:
    """Return lines in which Markdown sees no marks but those of code."""
    return "\n".join(re.sub(r"([*<\[\]])", r"\\\1", line) for line in text)


if __name__ == "__main__":
    PLACE.parent.mkdir(exist_ok=True)
    PLACE.write_text(page(), encoding="utf-8")
