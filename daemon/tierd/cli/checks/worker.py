"""The process in which `tierd doctor` calls Vulkan's drivers, as they may hang or die; see `aside`.

Run with the number of a file descriptor, one end of a `multiprocessing.Pipe`. The first message in are the
settings; each later one is a name of LOOKS, and is answered by what that returns. It ends with who asks, also
where a driver hangs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

from tierd.backends.parent import die_with_parent
from tierd.cli.checks import drivers, rails, vulkan
from tierd.cli.checks.finding import Finding
from tierd.settings import Settings
from tierd.tier.availability import Availability
from tierd.tier.placing import Foreseen, foresee


def _witness(settings: Settings, availability: Availability) -> Finding:
    return vulkan.witness(settings.gpu, availability.backend_available("resident"))


def _rails(_settings: Settings, availability: Availability) -> Finding:
    return rails.kompute(lambda: availability.backend_available("kompute").reason)


Answer = Finding | list[Finding] | dict[str, Foreseen]

LOOKS: Mapping[str, Callable[[Settings, Availability], Answer]] = {
    "loader": lambda _settings, _availability: vulkan.loader(),
    "devices": lambda settings, _availability: vulkan.devices(settings.gpu, drivers.graphics_cards()),
    "witness": _witness,
    "rails": _rails,
    "places": lambda settings, _availability: foresee(settings),
}


def main(descriptor: int) -> None:
    """Answer until nobody asks any more."""
    with Connection(descriptor) as asker, contextlib.suppress(EOFError):
        settings: Settings = asker.recv()
        with contextlib.closing(Availability(settings.gpu)) as availability:
            while True:
                asker.send(LOOKS[asker.recv()](settings, availability))


if __name__ == "__main__":
    die_with_parent()
    main(int(sys.argv[1]))
