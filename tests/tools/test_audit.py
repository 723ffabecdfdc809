"""What is told of tierd's dependencies."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import version
from pathlib import Path

import audit
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_the_list_has_all_that_tierd_needs_to_run_and_nothing_of_its_tests() -> None:
    sbom = json.loads(audit.document(audit.needed()))
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    assert sbom["metadata"]["component"]["version"] == version("tierd")
    components = {part["name"]: part for part in sbom["components"]}
    direct = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    assert direct <= components.keys()
    assert not {"pytest", "ruff", "mypy", "playwright"} & components.keys()
    for name, part in components.items():
        assert part["version"] == version(name)
        assert part["purl"] == f"pkg:pypi/{name}@{part['version']}"
    edges = {edge["ref"]: edge.get("dependsOn", []) for edge in sbom["dependencies"]}
    assert {reference.partition("==")[0] for reference in edges[f"tierd=={version('tierd')}"]} >= direct
    assert {target for targets in edges.values() for target in targets} <= edges.keys()


def test_a_known_flaw_fails_the_check() -> None:
    flaws = [{"id": "PYSEC-2026-1", "fix_versions": ["1.1"]}, {"id": "PYSEC-2026-2", "fix_versions": []}]
    parts = [{"name": "a", "version": "1.0", "vulns": flaws}, {"name": "b", "version": "2", "vulns": []}]
    lines, failed = audit.verdict({"dependencies": parts})
    assert failed
    assert lines == [
        "a 1.0: PYSEC-2026-1, repaired in 1.1",
        "a 1.0: PYSEC-2026-2, not repaired yet",
        "2 of 2 packages were asked about",
    ]


def test_what_could_not_be_asked_about_is_named() -> None:
    parts = [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "no answer"}]
    lines, failed = audit.verdict({"dependencies": parts})
    assert not failed
    assert lines == ["1 of 2 packages were asked about", "not run: no advisories are reached for b"]
