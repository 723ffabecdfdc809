"""HTTP: JSON in, JSON and event streams out. Knows no model, only what the engine publishes."""

from tierd.http.app import create_app
from tierd.http.mailboxes import Mailboxes
from tierd.http.server import serve

__all__ = ["Mailboxes", "create_app", "serve"]
