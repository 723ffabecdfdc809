"""Which conversations have lost their rows, to tell how much is computed again for want of room."""

from __future__ import annotations

from collections import deque

from tierd.kv.bank import Banked
from tierd.kv.openings import Packed, Tokens, longest_opening, owner_of, pack

# Conversations that are remembered, the latest.
_MOST = 256


class Gone:
    """The tokens of conversations whose rows are in no region, no page and no bank any more."""

    def __init__(self) -> None:
        self._conversations: deque[tuple[str, str, Packed]] = deque(maxlen=_MOST)

    def note(self, model: str, origin: str, tokens: Tokens) -> None:
        """Note a conversation that could not be kept; origin: see Bank."""
        self._conversations.append((model, origin, Packed(pack(tokens), owner_of(tokens))))

    def dropped(self, entry: Banked) -> None:
        """Note an entry that the bank has dropped."""
        self._conversations.append((entry.model, entry.origin, Packed(entry.packed or b"", entry.owner)))

    def find(self, model: str, origin: str, tokens: Tokens, minimum: int) -> int:
        """Return how many leading tokens had rows once, 0 below `minimum`."""
        held = (
            (gone, gone.content)
            for name, where, gone in self._conversations
            if (name, where, gone.owner) == (model, origin, owner_of(tokens))
        )
        found = longest_opening(pack(tokens), held, minimum)
        return 0 if found is None else found[1]
