"""A proxy as a process: from options to a running one, until it has given everything up after a signal.

The order at the start: the port is bound, so that the proxy knows its own address, which is its name in locks; then the
namespace is opened; then calls are taken; and last the proxy joins the live set, which is what brings clients. The end
is the reverse, with a drain before it: streams go to others before their clients notice.
"""

import asyncio
import math
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import field, fields
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from quire.app.addresses import advertised_host, parse_address
from quire.app.overrides import setting_names, with_overrides
from quire.app.pauses import set_startup_aside
from quire.app.starting import when_reachable
from quire.app.token_file import followed_token, followed_tokens
from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import PortInUse
from quire.ledger.settings import LedgerSettings
from quire.metadata import StoreSettings
from quire.proxy.admin.server import ProxyAdmin
from quire.proxy.gateway.settings import GatewaySettings
from quire.proxy.read.settings import ReadProxySettings
from quire.proxy.write.answers import lock_client_id
from quire.proxy.write.settings import WriteProxySettings
from quire.rpc.serving.grpc_channel import GrpcTransport
from quire.rpc.serving.grpc_server import GrpcServer, bind_grpc
from quire.rpc.serving.settings import ServingSettings
from quire.rpc.serving.tls import TlsFiles, client_context, server_context
from quire.rpc.serving.tokens import Token, Tokens
from quire.runtime import Runtime, real_runtime
from quire.stream.namespace import open_namespace
from quire.stream.settings import StreamSettings
from quire.telemetry.events import logger
from quire.values import dataclass

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from quire.proxy.read.proxy import ReadProxy
    from quire.proxy.write.proxy import WriteProxy
    from quire.stream.namespace import Namespace

RoleName: TypeAlias = Literal["write", "read"]
Proxy: TypeAlias = "WriteProxy | ReadProxy"

SESSION_S: Final = 2.0  # How soon others take over what a dead proxy owned.
DEFAULT_PORTS: Final[dict[RoleName, int]] = {"write": 7400, "read": 7500}
_INSTANCE_BYTES: Final = 16
_log = logger("proxy")


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """All that `--set` can change."""

    write: WriteProxySettings = field(default_factory=WriteProxySettings)
    read: ReadProxySettings = field(default_factory=ReadProxySettings)
    stream: StreamSettings = field(default_factory=StreamSettings)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    serving: ServingSettings = field(default_factory=ServingSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """What an operator says about a proxy."""

    role: RoleName
    uri: str
    """Of the namespace that it serves, as a direct client would connect to it."""
    listen: str
    advertise: str | None = None
    region: str = ""
    admin: str | None = "127.0.0.1:0"
    gateway: str | None = None
    """Where HTTP is served, too; nowhere without it."""
    http_hosts: tuple[str, ...] = ()
    """Other names by which HTTP is asked for than where it listens, and the advertised one."""
    tokens: str | None = None
    """A file with the tokens that callers may show. Without it nobody is asked for one."""
    token: str | None = None
    """What this proxy shows to others: where it is asked for one, it has to."""
    token_file: str | None = None
    """A file that has it, and is read again when it changes."""
    tls: TlsFiles | None = None
    """What it is called over TLS with, and calls others with. Without it nothing is encrypted."""
    tls_asks_clients: bool = False
    """Whether only callers with a certificate of the authority are taken."""
    limits: str | None = None
    """A file with the limits of a write proxy, which may change while it runs. Without it they are as set."""
    metadata_timeout_s: float = 10.0
    session_timeout_s: float = SESSION_S
    overrides: tuple[str, ...] = ()

    def settings(self) -> ProxySettings:
        """Raises `InvalidArgument` for what makes no sense."""
        return with_overrides(ProxySettings(), self.overrides)

    def http_names(self) -> tuple[str, ...]:
        return self.http_hosts if self.advertise is None else (self.advertise, *self.http_hosts)

    def shown(self) -> dict[str, dict[str, object]]:
        """Every option and setting as it is, with its origin. Secrets are not shown."""
        unset = ProxyOptions(self.role, "", "")
        options = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("overrides", "tls")
        }
        files = self.tls or TlsFiles()
        options |= {f"tls_{each.name}": getattr(files, each.name) for each in fields(files)}  # Paths, no secrets.
        found: dict[str, dict[str, object]] = {
            name: {
                "value": "…" if name == "token" and value else value,
                "origin": "default" if value == getattr(unset, name, None) and name != "role" else "option",
            }
            for name, value in options.items()
        }
        given = {override.partition("=")[0].strip() for override in self.overrides}
        for name, value in setting_names(self.settings()):
            is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
            found[name] = {
                "value": value if is_number else str(value),  # JSON knows no infinity.
                "origin": "--set" if name in given else "default",
            }
        return found


async def run_proxy(options: ProxyOptions) -> None:
    """Return when everything is given up and closed, after SIGINT or SIGTERM, or because somebody asked for it over the
    network; after a second signal at once. Raises why the proxy does not start; but a metadata store that cannot be
    reached is waited for.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()
    with _signals(stop, hurry):
        running = asyncio.create_task(_run(options, stop), name="proxy")
        hurrying = asyncio.create_task(hurry.wait(), name="wait for a second signal")
        await asyncio.wait([running, hurrying], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            _log.warning("proxy.hurried", role=options.role)
            running.cancel()
        hurrying.cancel()
        await asyncio.wait([running, hurrying])
    if not running.cancelled():
        running.result()


async def _run(options: ProxyOptions, stop: asyncio.Event) -> None:
    async with AsyncExitStack() as stack:
        proxy = await when_reachable(stack, lambda: running_proxy(options), stop)
        if proxy is None:
            return
        set_startup_aside()
        stopping = asyncio.create_task(stop.wait(), name="wait for a signal")
        asked = asyncio.create_task(proxy.wait_asked_to_drain(), name="wait to be drained")
        try:
            await asyncio.wait([stopping, asked], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            asked.cancel()
        _log.info("proxy.draining", role=options.role)
        await proxy.drain()
    _log.info("proxy.stopped", role=options.role)


@contextmanager
def _signals(stop: asyncio.Event, hurry: asyncio.Event) -> Iterator[None]:
    loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def running_proxy(options: ProxyOptions) -> AsyncIterator[Proxy]:
    """A proxy that serves, and that clients know of, for the block. Raises `PortInUse`, and what opening a namespace
    raises."""
    settings, runtime = options.settings(), real_runtime()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(runtime.disk.aclose)
        server = await _bound(options, settings, runtime)
        stack.push_async_callback(server.aclose)
        address = pb.Owner(
            host=advertised_host(options.listen, options.advertise),
            port=server.address[1],
            instance=runtime.rng.bytes(_INSTANCE_BYTES).hex(),
            region=options.region,
        )
        namespace = await stack.enter_async_context(
            open_namespace(
                options.uri,
                settings=settings.stream,
                ledger_settings=settings.ledger,
                client_id=lock_client_id(settings.write.shard, address),
                store_settings=StoreSettings(
                    operation_timeout_s=options.metadata_timeout_s, session_timeout_s=options.session_timeout_s
                ),
                runtime=runtime,
            )
        )
        me = f"{options.role}-proxy {address.host}:{address.port}"
        calling = None if options.tls is None else client_context(options.tls)
        token: Token | None = options.token
        if options.token_file is not None:
            token = await stack.enter_async_context(followed_token(options.token_file, runtime.clock))
        transport = GrpcTransport(runtime, me, tls=calling, token=token)
        stack.push_async_callback(transport.aclose)
        proxy = await stack.enter_async_context(_open(options, namespace, settings, address, transport))
        server.refusals.show_in(proxy.metrics)
        tokens = None
        if options.tokens is not None:
            tokens = await stack.enter_async_context(followed_tokens(options.tokens, runtime.clock))
            server.require(tokens)
        await server.start(proxy.handlers())
        admin = await _start_admin(stack, options, proxy, runtime, tokens)
        await stack.enter_async_context(proxy.join())
        gateway = await _start_gateway(stack, options, settings, address, proxy, tokens, token)
        server.set_serving(True)
        shown = f"{address.host}:{address.port}"
        _log.info("proxy.serving", role=options.role, address=shown, admin=admin, gateway=gateway)
        try:
            yield proxy
        finally:
            server.set_serving(False)


def _open(
    options: ProxyOptions, namespace: "Namespace", settings: ProxySettings, address: pb.Owner, transport: GrpcTransport
) -> "AbstractAsyncContextManager[Proxy]":
    if options.role == "write":
        return _open_writer(options, namespace, settings.write, address, transport)
    from quire.proxy.read.proxy import open_read_proxy  # Each role without the other: processes start sooner.

    return open_read_proxy(namespace, settings.read, address=address)


@asynccontextmanager
async def _open_writer(
    options: ProxyOptions,
    namespace: "Namespace",
    settings: WriteProxySettings,
    address: pb.Owner,
    transport: GrpcTransport,
) -> "AsyncIterator[WriteProxy]":
    from quire.proxy.write.proxy import open_write_proxy

    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(
            open_write_proxy(namespace, settings, address=address, transport=transport)
        )
        if options.limits is not None:
            from quire.app.limits_file import followed_limits

            clock = namespace.context.runtime.clock
            await stack.enter_async_context(
                followed_limits(options.limits, settings.limit_rules, clock, proxy.table.set_limits)
            )
        yield proxy


async def _bound(options: ProxyOptions, settings: ProxySettings, runtime: Runtime) -> GrpcServer:
    host, port = parse_address(options.listen, example=f"127.0.0.1:{DEFAULT_PORTS[options.role]}")
    tls = None if options.tls is None else server_context(options.tls, asks_clients=options.tls_asks_clients)
    try:
        return await bind_grpc(runtime, host, port, settings=settings.serving, tls=tls)
    except OSError as error:
        raise _in_use(options.listen, error) from error


async def _start_admin(
    stack: AsyncExitStack, options: ProxyOptions, proxy: Proxy, runtime: Runtime, tokens: Tokens | None
) -> str | None:
    if options.admin in (None, "none"):
        return None
    host, port = parse_address(options.admin, example="127.0.0.1:0")
    try:
        admin = await stack.enter_async_context(
            ProxyAdmin(
                proxy, runtime.clock, host, port, hosts=options.http_names(), tokens=tokens, config=options.shown()
            )
        )
    except OSError as error:
        raise _in_use(str(options.admin), error) from error
    return f"{admin.address[0]}:{admin.address[1]}"


async def _start_gateway(
    stack: AsyncExitStack,
    options: ProxyOptions,
    settings: ProxySettings,
    address: pb.Owner,
    proxy: Proxy,
    tokens: Tokens | None,
    token: Token | None,
) -> str | None:
    """HTTP in the same process. It is a client like others, so that it reaches every stream, whoever owns it."""
    if options.gateway in (None, "none"):
        return None
    from quire.proxy.client.client import open_proxy_client  # With all of HTTP, for the few that have a gateway.
    from quire.proxy.client.settings import ProxyClientSettings
    from quire.proxy.gateway.server import serve_gateway

    host, port = parse_address(options.gateway, example="127.0.0.1:8400")
    scheme = "quire" if options.tls is None else "quires"
    uri = f"{scheme}://{address.host}:{address.port}/{proxy.name}"
    client = await stack.enter_async_context(
        open_proxy_client(
            uri,
            client_id=f"gateway {address.host}:{address.port}",
            client_settings=ProxyClientSettings(token=token, tls=options.tls),
        )
    )
    try:
        served = await stack.enter_async_context(
            serve_gateway(
                {proxy.name: client},
                settings.gateway,
                host=host,
                port=port,
                hosts=options.http_names(),
                registry=proxy.metrics,
                tokens=tokens,
            )
        )
    except OSError as error:
        raise _in_use(str(options.gateway), error) from error
    return served.url


def _in_use(listen: str, error: OSError) -> PortInUse:
    return PortInUse(f"{listen} cannot be listened on: {error.strerror or error}", address=listen)
