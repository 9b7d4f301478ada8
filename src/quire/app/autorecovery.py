"""Autorecovery as a process: from options to a running one, until a signal ends it."""

import asyncio
import os
import signal
import socket
from contextlib import AsyncExitStack
from dataclasses import field
from functools import partial

from quire.app.addresses import parse_address
from quire.app.overrides import with_overrides
from quire.app.starting import when_reachable
from quire.errors import PortInUse
from quire.ledger.bookies.placing import PlacementSettings
from quire.ledger.settings import LedgerSettings
from quire.metadata import StoreSettings
from quire.replication.admin import AutorecoveryAdmin
from quire.replication.autorecovery import Roles, open_autorecovery
from quire.replication.settings import AutorecoverySettings
from quire.runtime import real_runtime
from quire.telemetry.events import logger
from quire.values import dataclass

_log = logger("autorecovery")


@dataclass(frozen=True, slots=True)
class AllSettings:
    """All that `--set` can change."""

    recovery: AutorecoverySettings = field(default_factory=AutorecoverySettings)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)


@dataclass(frozen=True, slots=True)
class AutorecoveryOptions:
    """What an operator says about autorecovery."""

    metadata: str
    name: str | None = None
    """What others read of us in votes and locks: the host and the process unless told otherwise."""
    admin: str | None = "127.0.0.1:0"
    http_hosts: tuple[str, ...] = ()
    """Other names by which HTTP is asked for than where it listens."""
    roles: Roles = field(default_factory=Roles)
    metadata_timeout_s: float = 10.0
    session_timeout_s: float = 10.0
    overrides: tuple[str, ...] = ()
    racks_file: str | None = None
    """Which bookie is in which rack. Without it any bookie may take any copy."""

    def settings(self) -> AllSettings:
        """Raises `InvalidArgument` for what makes no sense."""
        return with_overrides(AllSettings(), self.overrides)


async def run_autorecovery(options: AutorecoveryOptions) -> None:
    """Return after SIGINT or SIGTERM, when everything is given up. Raises why it does not start; but a metadata store
    that cannot be reached is waited for.
    """
    settings, runtime = options.settings(), real_runtime()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(runtime.disk.aclose)
        opening = partial(
            open_autorecovery,
            options.metadata,
            name=options.name or f"{socket.gethostname()}:{os.getpid()}",
            settings=settings.recovery,
            roles=options.roles,
            ledger_settings=settings.ledger,
            placement=PlacementSettings(racks_file=options.racks_file),
            store_settings=StoreSettings(
                operation_timeout_s=options.metadata_timeout_s, session_timeout_s=options.session_timeout_s
            ),
            runtime=runtime,
        )
        autorecovery = await when_reachable(stack, opening, stopped)
        if autorecovery is None:
            return
        address = ""
        if options.admin not in (None, "none"):
            host, port = parse_address(options.admin, example="127.0.0.1:0")
            try:
                admin = await stack.enter_async_context(
                    AutorecoveryAdmin(autorecovery, host, port, hosts=options.http_hosts)
                )
            except OSError as error:
                raise PortInUse(
                    f"{options.admin} cannot be listened on: {error.strerror or error}", address=str(options.admin)
                ) from error
            address = f"{admin.address[0]}:{admin.address[1]}"
        _log.info("autorecovery.serving", address=address)
        working = asyncio.create_task(autorecovery.run(), name="autorecovery")
        stopping = asyncio.create_task(stopped.wait(), name="wait for a signal")
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.wait([working, stopping])
        if not working.cancelled():
            working.result()
        _log.info("autorecovery.stopped")
