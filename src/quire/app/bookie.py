"""A bookie as a process: from options to a running one, until a signal or a failure ends it."""

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field
from functools import partial
from pathlib import Path

from quire.app.addresses import advertised_host, parse_address
from quire.app.overrides import with_overrides
from quire.app.pauses import set_startup_aside
from quire.app.starting import when_reachable
from quire.bookie.admin.status import serve_admin
from quire.bookie.bookie import Bookie, BookieSettings, ServeAdmin
from quire.bookie.folder_token import folder_token
from quire.bookie.identity import BookieFolders
from quire.errors import InvalidArgument
from quire.metadata import StoreSettings, open_cluster
from quire.runtime import Runtime, real_runtime
from quire.types import bookie_id
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class BookieOptions:
    """What an operator says about a bookie."""

    metadata: str
    data: Path
    journals: tuple[Path, ...] = ()
    listen: str = "127.0.0.1:3181"
    advertise: str | None = None
    id: str | None = None
    moves_with: Path | None = None
    """A folder above all the bookie's folders that may be moved as a whole, with the metadata in it."""
    admin: str | None = "127.0.0.1:0"
    http_hosts: tuple[str, ...] = ()
    """Other names by which HTTP is asked for than where it listens, and the advertised one."""
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    metadata_timeout_s: float = 10.0
    session_timeout_s: float = 10.0
    overrides: tuple[str, ...] = field(default=())

    def settings(self) -> BookieSettings:
        """Raises `InvalidArgument` for what makes no sense."""
        host, port = parse_address(self.listen)
        advertised_host(self.listen, self.advertise)
        settings = BookieSettings(
            self._folders(),
            host=host,
            port=port,
            advertised_host=self.advertise,
            bookie_id=None if self.id is None else bookie_id(self.id),
            folder_token=folder_token,
        )
        return with_overrides(settings, self.overrides)

    def serve_admin(self) -> ServeAdmin | None:
        """Raises `InvalidArgument` for what is no address."""
        if self.admin in (None, "none"):
            return None
        host, port = parse_address(self.admin)
        return partial(serve_admin, host=host, port=port, hosts=self.http_hosts)

    def _folders(self) -> BookieFolders:
        above = None if self.moves_with is None else os.path.normpath(self.moves_with.absolute())
        folders = BookieFolders(
            str(self.data.absolute()), tuple(str(each.absolute()) for each in self.journals), moves_with=above
        )
        if above is not None and any(os.path.commonpath([above, each]) != above for each in folders.all):
            raise InvalidArgument(
                f"not all of {', '.join(folders.all)} are in {above}, with which they should move",
                hint="Name a folder above all of them with --moves-with, or leave it out.",
            )
        return folders

    def tls(self) -> ssl.SSLContext | None:
        if self.tls_certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.tls_certificate, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(f"the TLS certificate cannot be used: {error}") from error
        return context


def default_settings() -> BookieSettings:
    """The settings of a bookie of which nothing was said."""
    return BookieSettings(BookieFolders("/data"))


async def run_bookie(options: BookieOptions) -> None:
    """Return after SIGINT or SIGTERM, when everything is closed. Raises why the bookie does not start or go on; but a
    metadata store that cannot be reached at the start is waited for.
    """
    settings, tls, runtime = options.settings(), options.tls(), real_runtime()
    admin = options.serve_admin()
    store = StoreSettings(operation_timeout_s=options.metadata_timeout_s, session_timeout_s=options.session_timeout_s)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(runtime.disk.aclose)
        bookie = await when_reachable(
            stack, lambda: _serving(options.metadata, store, runtime, settings, tls, admin), stopped
        )
        if bookie is None:
            return
        set_startup_aside()
        failing, stopping = asyncio.create_task(bookie.wait_failed()), asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait([failing, stopping], return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                failing.result()
        finally:
            failing.cancel()
            stopping.cancel()
            await asyncio.wait([failing, stopping])


@asynccontextmanager
async def _serving(
    metadata: str,
    store: StoreSettings,
    runtime: Runtime,
    settings: BookieSettings,
    tls: ssl.SSLContext | None,
    admin: ServeAdmin | None,
) -> AsyncIterator[Bookie]:
    async with (
        open_cluster(metadata, settings=store, runtime=runtime) as cluster,
        Bookie(runtime, cluster, settings, tls=tls, serve_admin=admin) as bookie,
    ):
        yield bookie
