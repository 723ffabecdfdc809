"""Whatever stands in a settings file: settings within bounds come of it, or one line that names the key."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierd.errors import SettingsError
from tierd.settings import MOST_SHOWN, Settings, load_settings

LONGEST_LINE = 3 * MOST_SHOWN
MOST_NUMBER = 2**40


def tables() -> Iterator[tuple[str, type[typing.Any]]]:
    """Go through the tables of settings; those that may come several times end with []."""
    for name, kind in typing.get_type_hints(Settings).items():
        repeated = typing.get_origin(kind) is tuple
        yield (f"{name}[]", typing.get_args(kind)[0]) if repeated else (name, kind)


ROWS = [
    (name, row, typing.get_type_hints(table)[row.name])
    for name, table in tables()
    for row in dataclasses.fields(table)
]
NUMBERS = [pytest.param(row, id=f"{name}.{row.name}") for name, row, kind in ROWS if kind in (int, float)]


@pytest.mark.parametrize("row", NUMBERS)
def test_every_number_has_two_ends(row: dataclasses.Field[typing.Any]) -> None:
    check = row.metadata["check"]
    for number in (math.inf, -math.inf, math.nan, 2**63, -(2**63), 16**5000, -(16**5000)):
        assert check(number).partition("lie between ")[2], number


digits = st.integers(1, 20_000)
integers = st.one_of(
    st.integers().map(str),
    st.builds(
        lambda base, count: f"0{base}{'7' if base != 'b' else '1'}{'1' * count}",
        st.sampled_from("xob"),
        digits,
    ),
    st.builds(lambda sign, count: sign + "9" * count, st.sampled_from(["", "+", "-"]), digits),
)
floats = st.one_of(
    st.sampled_from(["inf", "+inf", "-inf", "nan", "-nan", "1e999", "-1e999", "1e-999", "-0.0", "5e-324"]),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda number: f"{number!r}".replace("e+", "e")),
)
moments = st.one_of(
    st.dates().map(str),
    st.times().map(str),
    st.datetimes(timezones=st.timezones()).map(lambda moment: moment.isoformat()),
    st.sampled_from(["2025-02-30", "25:00:00", "0000-01-01", "9999-12-31T23:59:59.999999-23:59"]),
)
letters = st.characters(codec="utf-8")
texts = st.one_of(
    st.text(letters).map(lambda text: '"' + "".join(f"\\U{ord(letter):08x}" for letter in text) + '"'),
    st.builds(lambda letter, count: f"'{letter * count}'", st.sampled_from("a/~é\t"), st.integers(0, 50_000)),
)  # fmt: skip
nests = st.builds(
    lambda bracket, depth, ends: bracket[0] * depth + "1" + bracket[1] * (depth if ends else 0),
    st.sampled_from([("[", "]"), ("{a=", "}"), ("[{a=", "}]")]),
    st.integers(1, 2000),
    st.booleans(),
)
anything = st.one_of(
    integers, floats, moments, texts, nests, st.sampled_from(["true", "", "[]", "{}", "nope"])
)
values = st.one_of(anything, anything.map("[{}]".format), anything.map("{{a = {}}}".format))


def document(table: str, key: str, value: str) -> str:
    if table == "models[]":
        return (
            f'[[models]]\nid = "a"\npath = "b"\n{key} = {value}'
            if key not in ("id", "path")
            else (f'[[models]]\n{"path" if key == "id" else "id"} = "a"\n{key} = {value}')
        )
    return f"[[{table[:-2]}]]\n{key} = {value}" if table.endswith("[]") else f"[{table}]\n{key} = {value}"


def numbers_in(value: object) -> Iterator[float]:
    """Go through all numbers of settings."""
    if dataclasses.is_dataclass(value):
        for row in dataclasses.fields(value):
            yield from numbers_in(getattr(value, row.name))
    elif isinstance(value, tuple):
        for one in value:
            yield from numbers_in(one)
    elif isinstance(value, int | float):
        yield value


@given(st.sampled_from(ROWS), values)
@settings(max_examples=300)
def test_any_value_of_any_key_is_bounded_or_refused_in_a_line(
    tmp_path_factory: pytest.TempPathFactory, place: tuple[str, typing.Any, object], value: str
) -> None:
    table, row, _ = place
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_text(document(table, row.name, value), encoding="utf-8")
    try:
        read = load_settings(file)
    except SettingsError as error:
        said = str(error).removeprefix(f"{file}: ")
        assert said.isprintable(), said
        assert len(said) < LONGEST_LINE
        of_the_text = said.startswith(("not valid TOML: ", "a number has", "nested too deeply"))
        assert of_the_text or row.name in said, said
    else:
        assert all(abs(number) <= MOST_NUMBER for number in numbers_in(read))


@pytest.mark.parametrize("prefix", ["0x" + "f" * 20_000, "0o" + "7" * 20_000, "0b" + "1" * 20_000])
@pytest.mark.parametrize(
    ("table", "key", "bounds"),
    [("queue", "capacity", "0 and 2147483647"), ("kv", "memory_mb", "0 and 1073741824"),
     ("server", "drain_s", "0 and 86400"), ("engine", "threads", "0 and 1024")]
)  # fmt: skip
def test_endless_numbers_are_named_with_their_bounds(
    tmp_path: Path, table: str, key: str, bounds: str, prefix: str
) -> None:
    file = tmp_path / "tierd.toml"
    file.write_text(f"{table}.{key} = {prefix}")
    with pytest.raises(SettingsError) as refused:
        load_settings(file)
    bits = int(prefix, 0).bit_length()
    assert str(refused.value) == (
        f"{file}: {table}.{key} must lie between {bounds}, not a number of {bits} bits"
    )


def test_a_key_without_end_is_shortened(tmp_path: Path) -> None:
    file = tmp_path / "tierd.toml"
    for text in (
        "a" * 100_000 + " = 1",
        "[server]\n" + "b" * 100_000 + " = 1",
        ".".join(["c"] * 1000) + " = 1",
    ):
        file.write_text(text)
        with pytest.raises(SettingsError) as refused:
            load_settings(file)
        assert len(str(refused.value)) < len(str(file)) + LONGEST_LINE
