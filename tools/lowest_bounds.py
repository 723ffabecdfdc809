"""Print pip constraints that hold every dependency of tierd and of its tests to its lower bound.

Usage: python tools/lowest_bounds.py > constraints.txt
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def constraints() -> list[str]:
    """Return `name==version` for each requirement `name>=version`."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    return [re.sub(">=", "==", requirement) for requirement in requirements]


if __name__ == "__main__":
    print("\n".join(constraints()))
