"""The models of the settings, loaded while the server answers already."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Future

import click

from tierd import __version__
from tierd.cli.admin_doors import AdminDoors
from tierd.engine import CatalogueEntry, Engine
from tierd.engine.operation import Operation
from tierd.errors import TierdError
from tierd.http import Operations, Server
from tierd.settings import ModelSettings


class Start:
    """Loads the models while the server answers already, and says when all of them are ready."""

    def __init__(
        self,
        engine: Engine,
        models: tuple[ModelSettings, ...],
        doors: AdminDoors,
        operations: Operations,
        on_ready: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._models = models
        self._doors = doors
        self._operations = operations
        self._on_ready = on_ready
        self._failure: TierdError | None = None

    def begin(self, server: Server, url: str) -> None:
        """Begin to load; returns at once. The server is stopped when a model cannot be loaded."""
        # A daemon: what a hung disk keeps must not keep the process from ending.
        threading.Thread(target=self._load, args=(server, url), name="tierd-start", daemon=True).start()

    def check(self) -> None:
        """Raise the error that stopped the server, if one did."""
        if self._failure is not None:
            raise self._failure

    def _load(self, server: Server, url: str) -> None:
        try:
            loading = [self._begin_one(model) for model in self._models]
            concurrent.futures.wait(loading, return_when=concurrent.futures.FIRST_EXCEPTION)
            for future in loading:
                if future.done():
                    future.result()
        except TierdError as error:
            if not server.ending:  # else it was told to stop before the models were there
                self._failure = error
                server.stop()
            return
        if server.ending:
            return
        self._doors.announce()
        models = ", ".join(model.id for model in self._models)
        self._on_ready()
        click.echo(f"tierd {__version__} is ready at {url} and serves {models}")

    def _begin_one(self, model: ModelSettings) -> Future[CatalogueEntry]:
        operation = Operation("load", model.id)
        loaded = self._engine.load(model, operation)
        self._operations.add(operation, loaded)
        return loaded
