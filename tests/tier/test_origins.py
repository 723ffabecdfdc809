"""The origin of K/V rows, by which models are told apart that may share them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tier.tiers import TierOf, model
from tierd.backends import library
from tierd.kv.origin import origin_of, place_of, strangeness
from tierd.models import GGUFFile


def identity_of(path: Path) -> str:
    with GGUFFile.open(path) as file:
        return file.identity()


@pytest.mark.parametrize("codec", ["f16", "tq4"])
def test_on_the_host_it_names_the_file_the_codec_and_the_level(
    tiny: Path, tier_of: TierOf, codec: str
) -> None:
    tier, _ = tier_of(model(tiny), mode="off")
    slot = tier.open(model(tiny, kv_dtype=codec))
    assert slot.home.origin == origin_of(identity_of(tiny), codec, f"cpu {library.level()}")
    slot.close()


def test_on_a_device_it_names_that_its_driver_and_its_products(tiny: Path, tier_of: TierOf) -> None:
    tier, _ = tier_of(model(tiny))
    slot = tier.open(model(tiny))
    place = place_of(slot.home.origin)
    assert slot.home.origin == origin_of(identity_of(tiny), "f16", place)
    assert place.startswith(f"{slot.device}, driver ")
    assert place.endswith(", bit for bit")
    slot.close()


def test_a_file_that_was_written_since_is_another(tiny: Path, tmp_path: Path, tier_of: TierOf) -> None:
    path = shutil.copy(tiny, tmp_path / "copy.gguf")
    tier, _ = tier_of(model(path), mode="off")
    before = tier.open(model(path))
    os.utime(path, ns=(0, 12345))
    after = tier.open(model(path, "again"))
    assert strangeness(before.home.origin, after.home.origin) == "another model file"
    before.close()
    after.close()
