"""The wheels that `check` needs where nothing is installed: collected on one machine, unpacked on another.

Knows the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
# What `check` imports, tierd aside, and what these import in turn.
NEEDED = ("cffi", "gguf", "msgspec", "numpy", "pycparser", "pyyaml", "vulkan")
MOST_BYTES = 64 << 20
LOADER = "libvulkan.so.1"
_PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)


def collect(folder: Path, python: str) -> int:
    """Fill a folder with tierd's wheel and those of NEEDED for a Python, such as "3.12"; return their bytes.

    Takes this machine's Vulkan loader along, if there is one. Raises CalledProcessError where pip fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    target = ["--python-version", python, "--implementation", "cp", "--only-binary", ":all:"]
    for platform in _PLATFORMS:
        target += ["--platform", platform]
    _pip("download", "--no-deps", *target, "--dest", str(folder), *NEEDED)
    with tempfile.TemporaryDirectory() as build:  # not the one that an editable installation lives on
        _pip("wheel", "--no-deps", "--config-settings", f"build-dir={build}", "--wheel-dir", str(folder),
             str(REPOSITORY))  # fmt: skip
    loader = _loader_path()
    if loader is not None:
        shutil.copy(loader, folder / LOADER)
    return sum(path.stat().st_size for path in folder.iterdir())


def unpack(wheels: Path, folder: Path) -> None:
    """Unpack a folder's wheels side by side, and load the Vulkan loader that lies there if there is no other.

    Raises ValueError for a folder without wheels, or with one for another Python.
    """
    found = sorted(wheels.glob("*.whl"))
    if not found:
        raise ValueError(f"{wheels} holds no wheels; make it with --collect")
    for wheel in found:
        tags = wheel.stem.split("-")[-3].split(".")
        mine = f"cp{sys.version_info.major}{sys.version_info.minor}"
        if not {mine, "py3"} & set(tags):
            raise ValueError(
                f"{wheel.name} is not for Python {mine}; collect with --python or run another one"
            )
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    with contextlib.suppress(OSError):
        ctypes.CDLL(LOADER)
        return
    if (wheels / LOADER).is_file():
        # Whoever asks for a library of that name from now on gets this one.
        ctypes.CDLL(str((wheels / LOADER).resolve()), mode=ctypes.RTLD_GLOBAL)


def _pip(*arguments: str) -> None:
    command: Sequence[str] = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        *arguments,
    ]
    subprocess.run(command, check=True)


def _loader_path() -> Path | None:
    """Return where this machine's Vulkan loader lies, by the maps of a process that has it."""
    code = f"import ctypes; ctypes.CDLL('{LOADER}'); print(open('/proc/self/maps').read())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    paths = (Path(line.split()[-1]) for line in run.stdout.splitlines() if "libvulkan.so" in line)
    return next(paths, None)
