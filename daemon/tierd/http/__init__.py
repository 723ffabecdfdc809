"""HTTP: JSON in, JSON and event streams out. Knows no model, only what the engine publishes."""

from tierd.http.admin.app import create_admin_app
from tierd.http.admin.operations import Operations
from tierd.http.app import create_app
from tierd.http.mailboxes import Mailboxes
from tierd.http.roster import Roster
from tierd.http.server import AdminServer, Server

__all__ = [
    "AdminServer",
    "Mailboxes",
    "Operations",
    "Roster",
    "Server",
    "create_admin_app",
    "create_app",
]
