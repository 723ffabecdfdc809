"""What a SPIR-V module says about its interface: push constants and specialisation constants.

Numbers are those of the SPIR-V specification, sections 2.3 (layout of a module) and 3 (opcodes, enumerants).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_MAGIC = 0x07230203
_OP_NAME, _OP_MEMBER_NAME = 5, 6
_OP_TYPE_INT, _OP_TYPE_FLOAT, _OP_TYPE_VECTOR = 21, 22, 23
_OP_TYPE_STRUCT, _OP_TYPE_POINTER = 30, 32
_OP_FUNCTION, _OP_VARIABLE = 54, 59
_OP_DECORATE, _OP_MEMBER_DECORATE = 71, 72
_SPEC_ID, _OFFSET = 1, 35
_PUSH_CONSTANT, _PHYSICAL_STORAGE_BUFFER = 9, 5349

_SCALARS = {
    (_OP_TYPE_INT, 32, 0): "uint",
    (_OP_TYPE_INT, 32, 1): "int",
    (_OP_TYPE_INT, 64, 0): "address",
    (_OP_TYPE_FLOAT, 32): "float",
}


class ReflectionError(Exception):
    """The bytes are no SPIR-V module."""


@dataclass(frozen=True)
class PushField:
    """A member of the push_constant block. type: address, uint, int, float, or "" for any other."""

    name: str
    type: str
    offset: int


@dataclass(frozen=True)
class Interface:
    """What a module takes. constants: (name, constant_id); a part of the group's size has no name."""

    push: tuple[PushField, ...]
    constants: tuple[tuple[str, int], ...]


def reflect(module: bytes) -> Interface:
    """Return the interface of a module that carries its names. Raises ReflectionError."""
    names: dict[int, str] = {}
    types: dict[int, str] = {}
    members: dict[int, tuple[int, ...]] = {}
    member_names: dict[tuple[int, int], str] = {}
    offsets: dict[tuple[int, int], int] = {}
    spec_ids: dict[int, int] = {}
    pointees: dict[int, int] = {}
    block = None
    for op, words in _declarations(module):
        if op == _OP_NAME:
            names[words[0]] = _text(words[1:])
        elif op == _OP_MEMBER_NAME:
            member_names[words[0], words[1]] = _text(words[2:])
        elif op == _OP_DECORATE and words[1] == _SPEC_ID:
            spec_ids[words[0]] = words[2]
        elif op == _OP_MEMBER_DECORATE and words[2] == _OFFSET:
            offsets[words[0], words[1]] = words[3]
        elif op in (_OP_TYPE_INT, _OP_TYPE_FLOAT):
            types[words[0]] = _SCALARS.get((op, *words[1:]), "")
        elif op == _OP_TYPE_VECTOR and types.get(words[1]) == "uint" and words[2] == 2:
            types[words[0]] = "address"
        elif op == _OP_TYPE_STRUCT:
            members[words[0]] = words[1:]
        elif op == _OP_TYPE_POINTER:
            pointees[words[0]] = words[2]
            if words[1] == _PHYSICAL_STORAGE_BUFFER:
                types[words[0]] = "address"
        elif op == _OP_VARIABLE and words[2] == _PUSH_CONSTANT:
            block = pointees[words[0]]
    # A pointer is declared after the struct that holds it, so types are looked up at the end.
    push = [
        PushField(member_names.get((block, index), ""), types.get(type, ""), offsets[block, index])
        for index, type in enumerate(members[block] if block is not None else ())
    ]
    return Interface(tuple(push), tuple((names.get(id, ""), number) for id, number in spec_ids.items()))


def _declarations(module: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield opcode and operands of every instruction before the first function."""
    if len(module) < 20 or len(module) % 4 or struct.unpack_from("<I", module)[0] != _MAGIC:
        raise ReflectionError("not a SPIR-V module")
    words = struct.unpack(f"<{len(module) // 4}I", module)
    at = 5
    while at < len(words):
        count, op = words[at] >> 16, words[at] & 0xFFFF
        if count == 0 or at + count > len(words):
            raise ReflectionError(f"not a SPIR-V module: an instruction of {count} words at word {at}")
        if op == _OP_FUNCTION:
            return
        yield op, words[at + 1 : at + count]
        at += count


def _text(words: Sequence[int]) -> str:
    return struct.pack(f"<{len(words)}I", *words).split(b"\0")[0].decode()
