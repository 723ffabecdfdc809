"""`tierd serve`: the parts put together."""

from __future__ import annotations

import logging
from functools import partial

import click

from tierd import __version__
from tierd.backends.host import HostBackend
from tierd.engine import Engine
from tierd.http import Mailboxes, serve
from tierd.metrics import Metrics
from tierd.settings import Settings
from tierd.slot import open_slot

# How long the engine may take to end what runs when a model could not be loaded.
STOP_S = 10.0


def run(settings: Settings) -> None:
    """Load the models, then serve them until a signal ends it. Raises TierdError."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    mailboxes, metrics = Mailboxes(), Metrics(__version__)
    backend = HostBackend(settings.engine.threads)
    engine = Engine(
        mailboxes.deliver,
        open_slot=partial(open_slot, settings=settings, backend=backend),
        metrics=metrics,
    )
    engine.start()
    try:
        for loaded in [engine.load(model) for model in settings.models]:
            loaded.result()
        serve(engine, mailboxes, metrics, settings, partial(_announce, settings))
    finally:
        if engine.stop(STOP_S):
            backend.close()


def _announce(settings: Settings, url: str) -> None:
    models = ", ".join(model.id for model in settings.models)
    click.echo(f"tierd {__version__} is ready at {url} and serves {models}")
