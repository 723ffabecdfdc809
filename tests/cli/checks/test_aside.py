"""What becomes of `tierd doctor` where what it calls hangs or dies."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tierd.backends.vkapi.loader import DRIVERS_INSTEAD
from tierd.cli.checks.aside import PATIENCE, Aside, Patience
from tierd.cli.checks.finding import Verdict
from tierd.errors import DeviceError, DeviceTimeoutError
from tierd.settings import Settings


def hanging_driver(folder: Path) -> dict[str, str]:
    """Return an environment in which Vulkan has one driver, at which whoever loads it waits without end."""
    library, manifest = folder / "driver.so", folder / "driver.json"
    os.mkfifo(library)
    driver = {"library_path": str(library), "api_version": "1.3.0"}
    manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": driver}))
    return dict.fromkeys(DRIVERS_INSTEAD, str(manifest))


@pytest.fixture
def aside():
    with Aside(Settings()) as aside:
        yield aside


def test_a_driver_that_hangs_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, aside: Aside
) -> None:
    for name, value in hanging_driver(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(PATIENCE, "devices", Patience("one of Vulkan's drivers", 0.25))
    assert aside.ask("loader").verdict is Verdict.OK
    worker = aside._worker
    assert worker is not None
    with pytest.raises(DeviceTimeoutError, match=r"^one of Vulkan's drivers does not answer within 0\.25 s$"):
        aside.ask("devices")
    assert worker._process.returncode == -9
    assert aside.ask("loader").verdict is Verdict.OK


def test_who_hangs_at_a_driver_ends_with_who_asks(tmp_path: Path) -> None:
    asks = """
from tierd.cli.checks.aside import Aside
from tierd.settings import Settings
aside = Aside(Settings())
aside.ask("loader")
print(aside._worker._process.pid, flush=True)
aside.ask("devices")
"""
    environment = {**os.environ, **hanging_driver(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", asks], stdout=subprocess.PIPE, env=environment) as asker:
        assert asker.stdout is not None
        worker = int(asker.stdout.readline())
        opened = os.open(tmp_path / "driver.so", os.O_WRONLY)  # once there is one who reads: it hangs now
        watched = os.pidfd_open(worker)
        asker.kill()
    try:
        assert select.select([watched], [], [], 10.0)[0]
    finally:
        os.close(watched)
        os.close(opened)


def test_a_driver_that_ends_its_process_ends_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, aside: Aside
) -> None:
    (tmp_path / "kp.py").write_text("import os\nos.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"^Kompute ends the process that calls it: SIGABRT$"):
        aside.ask("rails")
