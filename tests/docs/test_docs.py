"""The documents for operators: what they name is there, and what there is they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.routing import Route

from live_admin import Administered, administered
from tierd.settings import ModelSettings
from tiny import write_llama

ROOT = Path(__file__).parents[2]
DOCS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/*.md")])


@pytest.mark.parametrize("document", DOCS, ids=lambda document: str(document.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8"))
    lost = [
        target
        for target in targets
        if not target.startswith(("http", "#", "mailto:"))
        and not (document.parent / target.partition("#")[0]).exists()
    ]
    assert lost == []


def test_the_admin_api_is_described_whole(tmp_path: Path) -> None:
    text = (ROOT / "docs/admin-api.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(GET|POST) (/[^`\s]*)`", text))
    model = ModelSettings(id="tiny", path=write_llama(tmp_path / "tiny.gguf", context=64), default=True)
    with administered(model, tmp_path / "admin.sock") as house:
        assert told == set(routes(house))


def test_messages_in_troubleshooting_are_what_tierd_says() -> None:
    text = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    table = text.partition("## It does not start")[2].partition("\n## ")[0]
    said = [
        message
        for row in table.splitlines()
        if "|" in row
        for message in re.findall("`(.*?)`", row.split("|")[1])
    ]
    code = "".join(file.read_text(encoding="utf-8") for file in ROOT.glob("daemon/tierd/**/*.py"))
    code = code.replace("{taken}", "port")
    parts = [part.strip(" :?;") for message in said for part in re.split("…|;", message)]
    assert len(said) >= 4
    assert [part for part in parts if part not in code] == []


def routes(house: Administered) -> list[tuple[str, str]]:
    """Return what the admin listener takes, files of the page left out."""
    app = house.live.server.admin[0].config.app
    return [
        (method, route.path)
        for route in app.routes  # type: ignore[union-attr]
        if isinstance(route, Route) and route.include_in_schema
        for method in (route.methods or set()) - {"HEAD"}
    ]
