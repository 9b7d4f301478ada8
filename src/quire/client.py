"""The front door: one URI, and everything that can be done with the streams behind it.

    async with quire.connect("file:./data") as client:
        await client.create_stream("orders")
        async with client.open_writer("orders") as writer:
            await writer.append(b"paid")
        async with client.open_reader("orders") as reader:
            async for record in reader: ...

The scheme of the URI picks what stands behind the door: `file:` a folder, with bookies inside this process
(`quire.embedded`); `distributedlog:` and its kin a namespace whose ledgers are on bookies elsewhere (`quire.stream.uri`
lists the forms); `quire:` proxies that reach bookies for us (`quire.proxy.client`). What a program has in its hands is
the same (`quire.stream.client_api`), and is told of in `quire.stream.namespace`.
"""

import ssl
from typing import Final

from quire.cold import ColdStores
from quire.errors import InvalidArgument, InvalidUri
from quire.ledger.bookies.placing import PlacementSettings, PolicyName
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata import StoreSettings
from quire.protocol.placement import Placement
from quire.proxy.client.settings import ProxyClientSettings
from quire.runtime import Runtime, StrPath
from quire.runtime.opening import Opening
from quire.stream.client_api import Client
from quire.stream.dynamic_settings import RELOAD_INTERVAL_S
from quire.stream.namespace import open_namespace
from quire.stream.settings import StreamSettings
from quire.stream.uri import StreamUri, parse_stream_uri

__all__ = ["Client", "connect", "ledgers", "parse"]

_DEFAULTS: Final = StreamSettings()
_LEDGER_DEFAULTS: Final = LedgerSettings()
_WORKS: Final = (
    "file:./data, quire://proxy:7400/ns, distributedlog://zk1:2181;zk2:2181/ns, distributedlog+etcd://host:2379/ns, "
    "distributedlog+sqlite:./data/metadata.db/ns and distributedlog+memory:name/ns"
)
_OF_LEDGERS: Final = ("zk", "etcd", "sqlite", "memory")  # With a layout behind a plus, perhaps.


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
) -> Opening[Client]:
    """The streams at `uri`, for an `async with` block. Nothing is opened before the block begins.

    Without a block, `await` it, and call `close` of what that gives. If the event loop ends before that, the client is
    closed then, with a `ResourceWarning`. Writers and readers can be opened in both ways, too.

    With `create` the namespace is made if it is missing; `client_id` is how others see this client in locks;
    `settings_file` is followed while the client is open; with `tls` connections to bookies, or to proxies, are
    encrypted; `cold` is for cold storage whose keys are not in the environment, and is closed by who gave it;
    `proxy_settings` are for clients of proxies. Raises `InvalidUri` at once; at the beginning of the block
    `NotBound`, `NotInitialised`, `ProxyUnreachable`, and what opening a metadata store raises.

    Behind `quire:`, and `quires:`, which is the same over TLS, the metadata, the bookies and the namespace are the
    proxies' business: what is said of those here raises `InvalidArgument`, also in `settings`.
    """
    shown = f"the client of {uri}"
    if _scheme(uri) in ("quire", "quires"):
        from quire.proxy.client.client import open_proxy_client  # And all of gRPC: others need neither.
        from quire.proxy.client.uri import parse_proxy_uri

        parsed = parse_proxy_uri(uri)
        _refuse_for_proxies(
            settings_file=settings_file is not None,
            ledger_settings=ledger_settings is not None,
            placement=placement != "rack-aware",
            pool_settings=pool_settings is not None,
            store_settings=store_settings is not None,
            cold=cold is not None,
        )
        return Opening(
            open_proxy_client(
                parsed,
                settings=settings,
                client_settings=proxy_settings or ProxyClientSettings(),
                client_id=client_id,
                tls=tls,
                runtime=runtime,
            ),
            shown,
        )
    if proxy_settings is not None:
        raise InvalidArgument(f"{uri!r} leads to no proxies, so there is nothing for proxy_settings to say")
    if _scheme(uri) == "file":
        from quire.embedded.folder import parse_file_uri
        from quire.embedded.log import open_embedded  # Bookies: only a folder needs them in this process.

        return Opening(
            open_embedded(
                parse_file_uri(uri),
                settings=settings,
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
            ),
            shown,
        )
    return Opening(
        open_namespace(
            parse(uri),
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
        ),
        shown,
    )


def ledgers(
    uri: str,
    *,
    settings: LedgerSettings = _LEDGER_DEFAULTS,
    placement: PolicyName | Placement | PlacementSettings = "rack-aware",
    pool_settings: PoolSettings | None = None,
    store_settings: StoreSettings | None = None,
    tls: ssl.SSLContext | None = None,
    runtime: Runtime | None = None,
) -> Opening[LedgerClient]:
    """The ledgers of the cluster whose metadata is at `uri`, or in a folder, for an `async with` block, or without one
    as `connect` says.

    With `tls` all connections to bookies are encrypted. Raises `InvalidUri`, and at the beginning of the block what
    opening a metadata store raises.
    """
    shown = f"the ledgers of {uri}"
    if _scheme(uri) == "file":
        from quire.embedded.folder import parse_file_uri
        from quire.embedded.log import open_embedded_ledgers

        return Opening(
            open_embedded_ledgers(
                parse_file_uri(uri),
                settings=settings,
                placement=placement,
                pool_settings=pool_settings,
                store_settings=store_settings,
                tls=tls,
                runtime=runtime,
            ),
            shown,
        )
    return Opening(
        open_ledgers(
            uri,
            settings=settings,
            placement=placement,
            pool_settings=pool_settings,
            store_settings=store_settings,
            tls=tls,
            runtime=runtime,
        ),
        shown,
    )


def _refuse_for_proxies(**given: bool) -> None:
    """Raises `InvalidArgument` for what was said of things that only proxies have."""
    for name, is_given in given.items():
        if is_given:
            raise InvalidArgument(
                f"a client of proxies has nothing that {name} could be for",
                hint="Give it to the proxies when they are started, or connect to the bookies yourself.",
            )


def parse(uri: str) -> StreamUri:
    """Raises `InvalidUri`, also for what another door takes."""
    scheme = _scheme(uri)
    if scheme.partition("+")[0] in _OF_LEDGERS:
        raise InvalidUri(
            f"{uri!r} names a ledger cluster, not a namespace of streams",
            hint=f"Open it with `quire.ledgers`. Streams are at {_WORKS}.",
            uri=uri,
        )
    try:
        return parse_stream_uri(uri)
    except InvalidUri as error:  # Which knows namespaces only.
        raise InvalidUri(str(error), hint=f"Write one of {_WORKS}.", uri=uri) from error


def _scheme(uri: str) -> str:
    return uri.partition(":")[0].lower() if ":" in uri else ""
