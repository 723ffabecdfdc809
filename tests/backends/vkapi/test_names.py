"""One package knows Vulkan's names."""

from __future__ import annotations

import re
from pathlib import Path

import tierd

PACKAGE = Path(tierd.__file__).parent
NAME = re.compile(r"\b(vk[A-Z]\w+|Vk[A-Z]\w+|VK_\w+|import vulkan|from vulkan)\b")


def test_vulkan_names_stand_in_vkapi_only() -> None:
    home = PACKAGE / "backends" / "vkapi"
    named = {path for path in PACKAGE.rglob("*.py") if NAME.search(path.read_text())}
    assert home / "binding.py" in named
    assert {path for path in named if home not in path.parents} == set()
