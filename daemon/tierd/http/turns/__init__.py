"""Turns of chats, whichever API asks for them. `turn` is what they all make, `opening` where it goes."""
