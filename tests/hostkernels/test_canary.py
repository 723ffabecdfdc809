"""The sanitisers report what they are there for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("fault", "report"),
    [
        ("overflow_heap", "AddressSanitizer: heap-buffer-overflow"),
        ("overflow_int", "runtime error: signed integer overflow"),
    ],
)
def test_fault_is_reported(sanitized_environment: dict[str, str], fault: str, report: str) -> None:
    canary = sanitized_environment["HOSTKERNELS_LIBRARY"].replace("libhostkernels", "libcanary")
    code = f"import ctypes; print(ctypes.CDLL({canary!r}).{fault}(16))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | sanitized_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert report in run.stderr
