"""The models that may be served: who is asked for by name, and what an administrator may load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierd.engine import Catalogue, CatalogueEntry
from tierd.errors import InvalidRequestError, ModelNotFoundError, UnavailableError
from tierd.settings import ModelSettings, Settings, model_at_run_time


class Roster:
    """The models of the settings, and those that were loaded later, loaded now or not. For any thread.

    restart_needed: settings that have changed in their file, but change with a restart only.
    """

    def __init__(self, settings: Settings) -> None:
        self.restart_needed: tuple[str, ...] = ()
        self._settings = settings
        self._models = {model.id: model for model in settings.models}

    def add(self, model: ModelSettings) -> None:
        """Note a model that was loaded, for later loads by name; what is configured stays as it is."""
        if not any(model.id == configured.id for configured in self._settings.models):
            self._models[model.id] = model

    def unloaded(self, catalogue: Catalogue) -> list[str]:
        """Return the names of those that neither answer nor are on their way."""
        return sorted(
            id for id in list(self._models) if id not in catalogue.entries and id not in catalogue.loading
        )

    def wanted(self, table: Mapping[str, Any]) -> ModelSettings:
        """Return the model that a table asks for: of a file by `path`, or else one of these by `id`.

        Of the latter, keys of the table change what is known. May wait for a disk.
        Raises SettingsError, InvalidRequestError, ModelNotFoundError.
        """
        if "path" in table:
            return model_at_run_time(self._settings, table)
        id = table.get("id")
        if not isinstance(id, str):
            raise InvalidRequestError(
                "it takes the `id` of a model that was configured or loaded before, or the `path` of a file",
                param="id",
            )
        known = self._models.get(id)
        if known is None:
            names = ", ".join(self._models) or "none"
            raise ModelNotFoundError(
                f"there is no model {id!r} to load; known: {names}; give the `path` of another", param="id"
            )
        return model_at_run_time(self._settings, table, known)

    def resolve(self, catalogue: Catalogue, name: str | None = None) -> CatalogueEntry:
        """Return the model called `name`; None: the default one.

        Raises ModelNotFoundError, UnavailableError; see Catalogue.resolve.
        """
        try:
            return catalogue.resolve(name)
        except (ModelNotFoundError, UnavailableError) as error:
            missing = self._default() if name is None else name
            if catalogue.closed or missing not in self.unloaded(catalogue):
                raise
            names = ", ".join(catalogue.entries) or "none"
            raise ModelNotFoundError(
                f"the model {missing!r} is not loaded, an administrator can load it; models served: {names}",
                param="model",
            ) from error

    def _default(self) -> str | None:
        return next((model.id for model in list(self._models.values()) if model.default), None)
