"""Quire for blocking code: the same doors, and behind them the same methods, without `async` and `await`.

    with quire.sync.connect("file:./data") as client:
        with client.open_writer("orders") as writer:
            writer.append(b"paid")
        with client.open_reader("orders") as reader:
            for record in reader: ...

What is opened without a `with` block is closed with `close`. What is forgotten is closed when it is collected, with a
`ResourceWarning`.

All of it runs in one thread with one event loop, which begins with the first client and ends with the last one; calls
wait for it. Handles may be used from any thread. `KeyboardInterrupt` cancels the call that it interrupts; the handle
can be used on. In a forked child handles of its parent raise `HandleClosed`: open new ones there.
"""

import ssl
from typing import Final

from quire import client as async_client
from quire.cold import ColdStores
from quire.ledger.bookies.placing import PlacementSettings, PolicyName
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.settings import LedgerSettings
from quire.metadata import StoreSettings
from quire.protocol.placement import Placement
from quire.proxy.client.settings import ProxyClientSettings
from quire.runtime import Runtime, StrPath
from quire.stream.dynamic_settings import RELOAD_INTERVAL_S
from quire.stream.settings import StreamSettings
from quire.sync.handles import open_handle
from quire.sync.ledger import AdvancedWriter, LedgerClient, LedgerReader, LedgerWriter
from quire.sync.stream import Client, StreamReader, StreamWriter

__all__ = [
    "AdvancedWriter",
    "Client",
    "LedgerClient",
    "LedgerReader",
    "LedgerWriter",
    "StreamReader",
    "StreamWriter",
    "connect",
    "ledgers",
]

_DEFAULTS: Final = StreamSettings()
_LEDGER_DEFAULTS: Final = LedgerSettings()


def connect(
    uri: str,
    *,
    settings: StreamSettings = _DEFAULTS,
    create: bool = False,
    client_id: str | None = None,
    settings_file: StrPath | None = None,
    reload_interval_s: float = RELOAD_INTERVAL_S,
    ledger_settings: LedgerSettings | None = None,
    placement: PolicyName | Placement | PlacementSettings = "rack-aware",
    pool_settings: PoolSettings | None = None,
    store_settings: StoreSettings | None = None,
    tls: ssl.SSLContext | None = None,
    runtime: Runtime | None = None,
    cold: ColdStores | None = None,
    proxy_settings: ProxyClientSettings | None = None,
) -> Client:
    """The streams at `uri`, open: for a `with` block, or to be closed. See `quire.connect`."""
    opening = async_client.connect(
        uri,
        settings=settings,
        create=create,
        client_id=client_id,
        settings_file=settings_file,
        reload_interval_s=reload_interval_s,
        ledger_settings=ledger_settings,
        placement=placement,
        pool_settings=pool_settings,
        store_settings=store_settings,
        tls=tls,
        runtime=runtime,
        cold=cold,
        proxy_settings=proxy_settings,
    )
    return open_handle(lambda: opening, Client, f"the client of {uri}", parent=None)


def ledgers(
    uri: str,
    *,
    settings: LedgerSettings = _LEDGER_DEFAULTS,
    placement: PolicyName | Placement | PlacementSettings = "rack-aware",
    pool_settings: PoolSettings | None = None,
    store_settings: StoreSettings | None = None,
    tls: ssl.SSLContext | None = None,
    runtime: Runtime | None = None,
) -> LedgerClient:
    """The ledgers of the cluster at `uri`, open: for a `with` block, or to be closed. See `quire.ledgers`."""
    opening = async_client.ledgers(
        uri,
        settings=settings,
        placement=placement,
        pool_settings=pool_settings,
        store_settings=store_settings,
        tls=tls,
        runtime=runtime,
    )
    return open_handle(lambda: opening, LedgerClient, f"the ledgers of {uri}", parent=None)
