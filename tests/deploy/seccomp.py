"""A filter of system calls by libseccomp, which systemd makes its own filters with."""

from __future__ import annotations

import ctypes
import errno
import socket
from collections.abc import Iterable
from typing import IO

_ALLOW = 0x7FFF0000
_MASKED, _EQUAL = 7, 4
_UNKNOWN = -1
# Of clone(2), all that make a namespace.
_NAMESPACES = 0x7E020080


def _refuse(code: int) -> int:
    return 0x00050000 | code


class _Argument(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = (
        ("number", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def write_filter(calls: Iterable[str], families: Iterable[str], to: IO[bytes]) -> None:
    """Write the program of a filter that lets these system calls pass; others fail with EPERM.

    families: of sockets that may be made, AF_… each. No namespace can be made or entered.
    """
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(_refuse(errno.EPERM)))

    def add(action: int, name: str, *arguments: _Argument) -> None:
        call = library.seccomp_syscall_resolve_name(name.encode())
        if call == _UNKNOWN or action == _refuse(errno.EPERM):
            return
        array = (_Argument * len(arguments))(*arguments)
        result = library.seccomp_rule_add_array(context, action, call, len(arguments), array)
        assert result in (0, -errno.EDOM), (name, result)  # EDOM: not of this architecture

    for name in sorted(set(calls) - {"socket", "clone", "clone3", "unshare", "setns"}):
        add(_ALLOW, name)
    for family in families:
        add(_ALLOW, "socket", _Argument(0, _EQUAL, getattr(socket, family), 0))
    add(_ALLOW, "clone", _Argument(0, _MASKED, _NAMESPACES, 0))
    add(_refuse(errno.ENOSYS), "clone3")  # its flags cannot be looked at; the C library takes clone then
    assert library.seccomp_export_bpf(context, to.fileno()) == 0
    library.seccomp_release(context)
