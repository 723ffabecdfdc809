"""Install the extra `rails`, Kompute, into the environment that runs this, where it can be had.

Where it cannot, say why and succeed: tierd serves without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("g++", "cmake", "libvulkan-dev", "libfmt-dev", "pybind11-dev")
OPTIONS = {
    "KOMPUTE_OPT_USE_BUILT_IN_FMT": "OFF",
    "KOMPUTE_OPT_USE_BUILT_IN_PYBIND11": "OFF",
    "KOMPUTE_OPT_USE_BUILT_IN_VULKAN_HEADER": "OFF",
    "KOMPUTE_OPT_DISABLE_VULKAN_VERSION_CHECK": "ON",
    "KOMPUTE_OPT_DISABLE_VK_DEBUG_LAYERS": "ON",
    "KOMPUTE_OPT_INSTALL": "OFF",
    "KOMPUTE_PYTHON_NUM_PARALLEL_THREADS": str(os.cpu_count() or 1),
    "CMAKE_TOOLCHAIN_FILE": str(ROOT / "tools" / "kompute.cmake"),
    "KOMPUTE_PYTHON": sys.executable,
}


def requirement() -> list[str]:
    """Return what the extra asks for."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extra: list[str] = table["project"]["optional-dependencies"]["rails"]
    return extra


def install() -> str:
    """Install it, unless it is there; return why that cannot be, "" when it is done."""
    if find_spec("kp") is not None:
        return ""
    if sys.version_info >= (3, 13):
        return "it takes numpy below 2, which there is not for Python 3.13 and later"
    debian = ["sh", str(ROOT / "tools" / "debian_packages.sh"), sys.executable, *PACKAGES]
    if subprocess.run(debian, check=False).returncode:
        return "it is built from source, and what that takes is missing"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *requirement()]
    if subprocess.run(pip, check=False, env={**os.environ, **OPTIONS}).returncode:
        return "it cannot be built here"
    return ""


if __name__ == "__main__":
    if reason := install():
        print(f"Kompute is not installed, so models are not served on rails: {reason}.")
