"""What a request may look up of responses that have ended: a conversation to go on from, or single items."""

from __future__ import annotations

from tierd.errors import ConflictError, PreviousResponseNotFoundError
from tierd.http.responses.draft import response_of
from tierd.http.responses.input import recall
from tierd.http.responses.run import Run
from tierd.http.responses.shapes import Item
from tierd.http.responses.shelf import ResponsesShelf
from tierd.http.responses.store import Kept


class Memory:
    """Of one request of an owner: each response is read once."""

    def __init__(self, shelf: ResponsesShelf, owner: str) -> None:
        self._shelf = shelf
        self._owner = owner
        self._items: dict[str, dict[str, Item]] = {}

    def conversation(self, id: str | None) -> list[Item]:
        """Return what the model was given for a response, and what it gave; nothing for None.

        Raises PreviousResponseNotFoundError, and ConflictError while it is on its way.
        """
        param = "previous_response_id"
        if id is None:
            return []
        found = self._shelf.find(self._owner, id)
        if found is None:
            raise PreviousResponseNotFoundError(
                f"{param}: there is no response {id!r}, or none is kept any more; send the whole input",
                param=param,
            )
        if isinstance(found, Run):
            raise ConflictError(
                f"{param}: {id!r} is on its way; go on from it once it has ended", param=param
            )
        return recall(found)

    def item(self, id: str) -> Item | None:
        """Return the item that a response has named so, None where none is kept."""
        response = response_of(id)
        if response is None:
            return None
        if response not in self._items:
            found = self._shelf.find(self._owner, response)
            items = recall(found) if isinstance(found, Kept) else []
            self._items[response] = {item.id: item for item in items}
        return self._items[response].get(id)
