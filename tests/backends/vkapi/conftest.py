"""A software device and a shader for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compile_shaders import find_tool
from faulty import take_back
from tierd.backends.vkapi import Device


@pytest.fixture(scope="session")
def scaled_add(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """SPIR-V of scaled_add.comp."""
    output = tmp_path_factory.mktemp("spirv") / "scaled_add.spv"
    source = Path(__file__).with_name("scaled_add.comp")
    compiler = find_tool("glslangValidator")
    done = compiler.run("--target-env", "vulkan1.2", "-V", "--quiet", str(source), "-o", str(output))
    assert done.returncode == 0, done.stdout
    return output.read_bytes()


@pytest.fixture(params=[False, True], ids=["direct", "staged"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A device whose memory the host sees, and one whose it does not; the validation layer stays silent."""
    with Device.open(allow_software=True, hide_host_visible=request.param, validate="sync") as opened:
        yield opened
    assert opened.messages == []


@pytest.fixture
def open_device() -> Iterator[Callable[..., Device]]:
    """Opens validated devices that are closed after the test; whatever the layer says fails it."""
    opened: list[Device] = []

    def open(**options: object) -> Device:
        opened.append(Device.open(allow_software=True, validate=True, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open
    for each in opened:
        take_back(each)
        each.close()
        assert each.messages == []
