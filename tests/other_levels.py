"""Run the tests of the kernels, of the host backend and of the oracle at every level but the active one.

Usage: python tests/other_levels.py [PYTEST OPTION...]

`make test` runs them at the best level too, and there alone feeds the oracle's long text (with f16), all of
its greedy rows, and the larger model step by step; at these levels `make test-long` does, which calls this
with its own options. Levels that this machine lacks are named as not run.
Exit code 1 when a test fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from levels import levels_of_this_machine
from tierd.backends import library

HERE = Path(__file__).resolve().parent
TESTS = [HERE / "hostkernels", *sorted(HERE.glob("backends/test_host*.py")), HERE / "test_oracle.py"]


def main() -> int:
    others = [level for level in library.LEVELS if level != library.level()]
    there = levels_of_this_machine()
    for level in others:
        if level not in there:
            print(f"not run: this machine has no {level}", flush=True)
    failed = False
    for level in others:
        if level in there:
            print(f"at level {level}:", flush=True)
            command = [sys.executable, "-m", "pytest", "-q", *sys.argv[1:], *map(str, TESTS)]
            environment = os.environ | {"HOSTKERNELS_LEVEL": level}
            failed |= subprocess.run(command, cwd=HERE.parent, env=environment, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
