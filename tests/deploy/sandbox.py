"""tierd under the restrictions of its unit, where systemd is not there to set them: with bubblewrap.

PLAYED says how each directive of the unit is played. NOT_PLAYED are those that restrict nothing, or that only
systemd can set; `test_sandbox` demands that every directive is in one of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.seccomp import write_filter
from deploy.unit import SYSTEMD, directives, system_calls

UNIT = SYSTEMD / "tierd.service"
REPOSITORY = SYSTEMD.parents[1]

PLAYED: dict[str, str] = {
    "User": "a user namespace in which it is no root",
    "Group": "likewise",
    "Environment": "as it is",
    "StateDirectory": "folders of the test, bound to where systemd would make them",
    "CacheDirectory": "likewise",
    "RuntimeDirectory": "likewise",
    "DevicePolicy": "a /dev with nothing but null, zero, full, random, urandom, tty and terminals",
    "DeviceAllow": "/dev/dri and /dev/nvidia* are there, if the machine has them",
    "CapabilityBoundingSet": "all are dropped",
    "NoNewPrivileges": "as it is",
    "ProtectSystem": "all is mounted read-only",
    "ProtectHome": "/home and /root are empty, but for this repository and Python",
    "PrivateTmp": "a /tmp and a /var/tmp of its own",
    "PrivateIPC": "a namespace",
    "RemoveIPC": "what is in it goes with it",
    "ProtectProc": "a namespace of processes, with a /proc of its own",
    "ProtectKernelTunables": "/proc/sys is read-only",
    "ProtectControlGroups": "/sys is read-only",
    "ProtectHostname": "a namespace",
    "RestrictNamespaces": "by the filter of system calls",
    "RestrictAddressFamilies": "by the filter of system calls",
    "SystemCallFilter": "by libseccomp, as systemd does it",
    "SystemCallArchitectures": "libseccomp refuses all others",
    "SystemCallErrorNumber": "as it is",
    "ProtectKernelModules": "by the filter of system calls and without capabilities",
    "ProtectKernelLogs": "by the filter of system calls and without capabilities",
    "ProtectClock": "by the filter of system calls and without capabilities",
    "Type": "the test has the socket to notify",
    "ExecStart": "with the Python of the tests",
    "ExecReload": "the test sends the signal",
}
NOT_PLAYED = {
    "NotifyAccess", "WatchdogSec", "TimeoutStartSec", "TimeoutStopSec", "KillMode", "Restart",
    "RestartSec", "RestartPreventExitStatus", "OOMPolicy", "LimitNOFILE", "UMask", "StateDirectoryMode",
    "CacheDirectoryMode", "RuntimeDirectoryMode", "RestrictRealtime", "RestrictSUIDSGID",
    "LockPersonality",
}  # fmt: skip

_PLACES = {"StateDirectory": "/var/lib", "CacheDirectory": "/var/cache", "RuntimeDirectory": "/run"}
_COMPILED = "/var/cache/tierd/mesa"


def _folders(service: list[tuple[str, str]], folder: Path) -> tuple[list[str], dict[str, str]]:
    """Make the folders that the unit asks for; return how they are bound, and what tells of them."""
    arguments: list[str] = []
    environment: dict[str, str] = {}
    for name, base in _PLACES.items():
        arguments += "--tmpfs", base
        places = [f"{base}/{each}" for key, value in service if key == name for each in value.split()]
        for place in places:
            made = folder / place.strip("/")
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        arguments += "--bind", str(folder / places[0].strip("/")), places[0], "--remount-ro", base
        variable = name.removesuffix("Directory").upper() + "_DIRECTORY"
        environment[variable] = ":".join(places)
    return arguments, environment


@contextmanager
def confined(
    folder: Path, command: Sequence[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Run a command under the unit's restrictions; it is killed in the end.

    folder: holds what it may write, but for what Mesa compiles, which is shared with other tests as
    MESA_SHADER_CACHE_DIR says. environment: what it sees beside that of the unit.
    """
    service = directives(UNIT, "Service")
    folders, told = _folders(service, folder)
    (folder / _COMPILED.strip("/")).mkdir()
    seen = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "MESA_SHADER_CACHE_DIR": _COMPILED}
    seen |= told | environment
    for value in (value for name, value in service if name == "Environment"):
        seen |= dict(pair.split("=", 1) for pair in value.split())
    calls = system_calls([value for name, value in service if name == "SystemCallFilter"])
    (families,) = (value for name, value in service if name == "RestrictAddressFamilies")
    devices = [*Path("/dev").glob("dri"), *Path("/dev").glob("nvidia*")]
    with tempfile.TemporaryFile() as program:
        write_filter(calls, families.split(), program)
        program.seek(0)
        arguments = [
            "bwrap", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv",
            "--unshare-user", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL",
            "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
            "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys",
            "--tmpfs", "/tmp", "--tmpfs", "/var/tmp", "--tmpfs", "/home", "--tmpfs", "/root",
            *(part for place in (str(REPOSITORY), sys.base_prefix) for part in ("--ro-bind", place, place)),
            *folders, "--bind", os.environ["MESA_SHADER_CACHE_DIR"], _COMPILED,
            *(part for device in devices for part in ("--dev-bind", str(device), str(device))),
            *(part for name, value in seen.items() for part in ("--setenv", name, value)),
            "--seccomp", str(program.fileno()),
        ]  # fmt: skip
        process = subprocess.Popen(
            [*arguments, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[program.fileno()],
        )
    with process:
        try:
            yield process
        finally:
            process.kill()
