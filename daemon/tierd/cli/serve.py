"""`tierd serve`: the parts put together.

The listeners come first, so that an address in use is found at once; then clients are answered, with 503
while the models load; then tierd says that it is ready. A model that cannot be loaded, or not where it must
run, ends all.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from queue import SimpleQueue

from tierd import __version__
from tierd.backends.host import HostBackend
from tierd.cli.admin_doors import AdminDoors
from tierd.cli.drops import note_drop
from tierd.cli.reload import Reloader
from tierd.cli.start import Start
from tierd.cli.supervision import Supervision
from tierd.engine import Engine
from tierd.engine.messages import Message
from tierd.http import (
    AdminServer,
    Mailboxes,
    Operations,
    Roster,
    Server,
    create_admin_app,
    create_app,
)
from tierd.http.listeners import listen, url
from tierd.http.waiting import WaitingRoom
from tierd.kv.bank import Bank
from tierd.kv.gone import Gone
from tierd.kv.sizing import bank_limit, mib
from tierd.kv.spill import open_spill
from tierd.metrics import Metrics
from tierd.service.activation import take_listener
from tierd.service.logs import Logs
from tierd.service.notify import Notifier
from tierd.service.traces import OpenTelemetryTraces, Traces
from tierd.settings import Settings, TracesSettings
from tierd.tier.host_site import HostSite
from tierd.tier.placing import Tier

# How long the engine may take to end what runs when a model could not be loaded.
STOP_S = 10.0
# What else there is to do at the end, in all.
SLACK_S = 10.0

log = logging.getLogger(__name__)


def run(settings: Settings, read: Callable[[], Settings]) -> None:
    """Serve the models until a signal ends it. Raises TierdError. read: reads the settings again."""
    notifier = Notifier.taken_from(os.environ)
    with ExitStack() as stack:
        logs = stack.enter_context(closing(Logs(sys.stderr)))
        logs.set(**asdict(settings.log))
        passed = take_listener(os.environ)
        public = stack.enter_context(passed or listen(settings.server.listen))
        if passed is not None:
            log.info("systemd has %s; server.listen counts for nothing", url(public))
        doors = AdminDoors(settings.admin, stack)
        traces = stack.enter_context(closing(traces_to(settings.traces)))
        mailboxes, metrics = Mailboxes(), Metrics(__version__)
        backend = HostBackend(settings.engine.threads)
        gone = Gone()
        inbox: SimpleQueue[Message] = SimpleQueue()
        spill = open_spill(settings.state, inbox.put)
        bank = Bank(bank_limit(settings.kv), on_drop=partial(note_drop, gone, metrics), spill=spill)
        if bank.count:
            log.info("state.dir: found %d conversations of before, %s", bank.count, mib(bank.spilled))
        tier = Tier(settings, HostSite(backend, bank=bank), backend.pool, bank=bank, gone=gone)
        engine = Engine(
            mailboxes.deliver,
            open_slot=tier.open,
            metrics=metrics,
            settings=settings,
            inbox=inbox,
            bank=bank,
            tier=tier.status,
            release=tier.release,
            traces=traces,
        )
        engine.start()
        try:
            roster, operations = Roster(settings), Operations()
            admin = [
                AdminServer(create_admin_app(engine, roster, operations, metrics, token), listener)
                for listener, token in doors.listeners
            ]
            supervision = Supervision(notifier, engine, operations)
            app = create_app(engine, mailboxes, metrics, roster, settings, traces)
            room = WaitingRoom(app)
            if passed is None:
                room.open()

            def ready() -> None:
                room.open()
                supervision.ready()

            start = Start(engine, settings.models, doors, operations, ready)

            def ending() -> None:
                room.open()
                supervision.ending(server.drain_s + STOP_S + settings.state.save_s + SLACK_S)

            def take(changed: Settings) -> None:
                engine.configure(changed).result()
                app.state.quotas.change(changed.keys)
                server.drain_s = changed.server.drain_s
                logs.set(**asdict(changed.log))

            server = Server(room, engine, public, start.begin, admin, settings.server, ending)
            server.kept_open = passed is not None
            reloader = Reloader(settings, read, take, supervision, roster)
            if notifier.watchdog_s:
                faulthandler.enable()  # systemd aborts what hangs; the log shows where
            supervision.start()
            stack.callback(supervision.close)
            with reloader.on_hangup():
                server.serve_until_stopped()
            start.check()
        finally:
            if engine.stop(STOP_S):
                tier.close()
                backend.close()
            if spill is not None:
                spill.close(STOP_S)


def traces_to(settings: TracesSettings) -> Traces:
    """Return where spans go. Raises SettingsError."""
    return OpenTelemetryTraces(settings.endpoint, __version__) if settings.endpoint else Traces()
