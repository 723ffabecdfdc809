"""List what an installed tierd is made of, and ask whether any of it has known vulnerabilities.

Usage: python tools/audit.py SBOM.json

The list is a CycloneDX 1.6 document (https://cyclonedx.org/docs/1.6/json/) of all that tierd needs to run, as
it is installed here, extras too. Then pip-audit asks the advisories of PyPI. Exit code 1 where
one is known. What could not be asked about is counted and named.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = "tierd"
EXTRAS = ("rails", "traces")


# Distributions by name, each with the names of those that it needs.
Parts = Mapping[str, tuple[Distribution, frozenset[str]]]


def needed() -> Parts:
    """Return what tierd needs to run, itself among it. Extras that are not installed whole are left out."""
    found: dict[str, tuple[Distribution, frozenset[str]]] = {}
    waiting = [Requirement(f"{ROOT}[{','.join(EXTRAS)}]")]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        known = found.get(name)
        whole = distribution(name)
        requirements = list(_requirements(whole, wanted.extras))
        names = frozenset(canonicalize_name(one.name) for one in requirements)
        if known is None or not names <= known[1]:
            found[name] = whole, names | (known[1] if known else frozenset())
            waiting += requirements
    return found


def _requirements(whole: Distribution, extras: set[str]) -> Iterator[Requirement]:
    """Go through what a distribution needs with these extras, as far as extras are installed."""
    for extra in ("", *sorted(extras)):
        texts = map(Requirement, whole.requires or ())
        chosen = [one for one in texts if one.marker is None or one.marker.evaluate({"extra": extra})]
        if not extra or all(_is_installed(one.name) for one in chosen):
            yield from chosen


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def document(parts: Parts) -> str:
    """Return the list as CycloneDX has it."""
    components = {name: _component(name, whole) for name, (whole, _) in parts.items()}
    bom = Bom(components=[part for name, part in components.items() if name != ROOT])
    bom.metadata.component = components[ROOT]
    for name, (_, names) in parts.items():
        bom.register_dependency(components[name], [components[other] for other in sorted(names)])
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _component(name: str, whole: Distribution) -> Component:
    license = whole.metadata.get("License-Expression") or whole.metadata.get("License")
    return Component(
        name=name,
        version=whole.version,
        type=ComponentType.APPLICATION if name == ROOT else ComponentType.LIBRARY,
        bom_ref=f"{name}=={whole.version}",
        purl=PackageURL("pypi", None, name, whole.version),
        licenses=[LicenseFactory().make_from_string(license.splitlines()[0])] if license else [],
    )


def verdict(report: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the lines that tell what pip-audit has found, and whether there is anything to repair."""
    parts = report["dependencies"]
    unasked = [part["name"] for part in parts if "skip_reason" in part]
    lines = [
        f"{part['name']} {part['version']}: {flaw['id']}, {_repair(flaw['fix_versions'])}"
        for part in parts
        for flaw in part.get("vulns", ())
    ]
    failed = bool(lines)
    lines.append(f"{len(parts) - len(unasked)} of {len(parts)} packages were asked about")
    if unasked:
        lines.append(f"not run: no advisories are reached for {', '.join(unasked)}")
    return lines, failed


def _repair(versions: list[str]) -> str:
    return f"repaired in {', '.join(versions)}" if versions else "not repaired yet"


def asked(parts: Parts) -> Mapping[str, Any]:
    """Return pip-audit's report of all but tierd itself."""
    with tempfile.TemporaryDirectory() as folder:
        pinned, report = Path(folder) / "pinned.txt", Path(folder) / "report.json"
        lines = [f"{name}=={whole.version}" for name, (whole, _) in sorted(parts.items()) if name != ROOT]
        pinned.write_text("\n".join(lines) + "\n", encoding="utf-8")
        options = ["--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json"]
        command = [sys.executable, "-m", "pip_audit", "-r", str(pinned), *options, "-o", str(report)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if not report.exists():
            raise SystemExit(f"pip-audit failed: {run.stderr.strip()}")
        told: Mapping[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return told


def main(target: Path) -> int:
    parts = needed()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(document(parts), encoding="utf-8")
    lines, failed = verdict(asked(parts))
    print(f"{target}: {len(parts) - 1} packages", *lines, sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
