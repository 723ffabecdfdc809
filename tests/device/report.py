"""What the check has found: printed as it comes, kept as one tree, written as JSON after every section."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tierd.errors import DeviceLostError, DeviceTimeoutError, TierdError

Found = dict[str, Any]


class Report:
    """The sections that have run.

    found: by name; one that has failed or was not run has "result" and "reason" instead. took: the seconds of
    each. failed: their names, and those of bars. lost: why the device is of no use any more, "" while it is.
    """

    def __init__(self, out: Path | None, **about: Any) -> None:
        """out: where the JSON goes. about: what it begins with."""
        self.found: Found = about
        self.took: dict[str, float] = {}
        self.failed: list[str] = []
        self.lost = ""
        self._out = out
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the check has been running."""
        return time.monotonic() - self._started

    def section(self, name: str, work: Callable[[], Found], *, reason: str = "") -> Found | None:
        """Run a section and return what it has found; None where it fails, or has a reason not to run."""
        begun = self.seconds
        print(f"\n{name} ({begun:.0f} s)", flush=True)
        reason = reason or self.lost
        found: Found | None = None
        if not reason:
            try:
                found = work()
            except (TierdError, OSError) as error:
                reason = f"{type(error).__name__}: {error}"
                self.failed.append(name)
                if isinstance(error, DeviceLostError | DeviceTimeoutError):
                    self.lost = f"the device was lost in {name}"
        if found is None:
            result = "fail" if name in self.failed else "not run"
            self.found[name] = {"result": result, "reason": reason}
            line(result, reason)
        else:
            self.found[name] = found
            entries = {name: found} | {key: entry for key, entry in found.items() if isinstance(entry, dict)}
            self.failed += [key for key, entry in entries.items() if entry.get("result") == "fail"]
        self.took[name] = self.seconds - begun
        self.write()
        return found

    def write(self) -> None:
        """Write what there is so far."""
        self.found["seconds"] = round(self.seconds, 1)
        if self._out is not None:
            self._out.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")


def line(what: str, *values: object) -> None:
    """Print a line of a section."""
    print(f"  {what:42}" + "  ".join(map(str, values)), flush=True)
