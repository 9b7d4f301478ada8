from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from quire.metadata import Cluster, init_cluster, open_store, parse_uri
from quire.runtime import real_runtime
from tests.interop.ensembles import Bookies, running_bookies
from tests.interop.ledger_client import JavaLedgerClient, Wire, connect
from tests.interop.peer import ApacheCluster, JavaPeer
from tests.interop.raw_stream import RawStreams, raw_streams
from tests.interop.shell import BookieShell
from tests.interop.stream_peer import JavaNamespace, NamespaceSite, OpenNamespace, bind, connect_namespace
from tests.support.servers.zookeeper import ZooKeeperServer

OpenClient = Callable[..., Awaitable[JavaLedgerClient]]

LAYOUTS = ("flat", "hierarchical", "longhierarchical")


@dataclass(frozen=True, slots=True)
class Site:
    """A place for one cluster: a root of its own on the server. Its parent exists, as Apache's tools demand."""

    address: str
    root: str

    def uri(self, layout: str | None = None) -> str:
        """Without a layout, the URI of a client that takes what is stored."""
        return f"zk{f'+{layout}' if layout else ''}://{self.address}{self.root}"


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def java(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    """One Java process for all tests. It is the younger one, so that the server is there until it has ended."""
    peer = JavaPeer(tmp_path_factory.mktemp("java") / "stderr.log")
    yield peer
    peer.stop()


@pytest.fixture
def site(zookeeper: ZooKeeperServer) -> Site:
    return Site(zookeeper.address, f"/interop-{uuid4().hex}")


@pytest.fixture
def shell(tmp_path: Path) -> BookieShell:
    return BookieShell(tmp_path)


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def cluster(site: Site, layout: str) -> AsyncIterator[Cluster]:
    """A new cluster of ours."""
    uri = parse_uri(site.uri(layout))
    async with open_store(uri) as store:
        yield await init_cluster(store, uri, real_runtime())


@pytest.fixture
async def apache(java: JavaPeer, site: Site, cluster: Cluster) -> AsyncIterator[ApacheCluster]:
    """The same cluster in Java, opened by a URI that names no layout."""
    async with java.open(site.uri()) as opened:
        yield opened


# --- Bookies, and Java's ledger client on them


@pytest.fixture(scope="session")
def running(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Bookies]]:
    """Three bookies of each kind that is asked for, for all tests."""
    found: dict[str, Bookies] = {}
    failed: dict[str, Exception] = {}
    with ExitStack() as stack:

        def of_kind(kind: str) -> Bookies:
            if kind in failed:  # A second try would only meet what is left of the first, and hide why that failed.
                raise RuntimeError(f"the {kind} bookies did not start: {failed[kind]}") from failed[kind]
            if kind not in found:
                started = running_bookies(kind, tmp_path_factory.mktemp(kind), zookeeper.address)
                try:
                    found[kind] = stack.enter_context(started)
                except Exception as error:
                    failed[kind] = error
                    raise
            return found[kind]

        yield of_kind


@pytest.fixture
def bookies(request: pytest.FixtureRequest, running: Callable[[str], Bookies]) -> Iterator[Bookies]:
    """Three bookies of the kind that the test names. They run again after it, whatever it did."""
    found = running(request.param)
    yield found
    found.start()


@pytest.fixture
async def open_client(java: JavaPeer, bookies: Bookies) -> AsyncIterator[OpenClient]:
    """Opens Java's ledger client in one wire version, with settings of Java's by name, until the end of the test."""
    async with AsyncExitStack() as stack:

        async def client(wire: Wire, **settings: object) -> JavaLedgerClient:
            return await stack.enter_async_context(connect(java, bookies.uri, wire, **settings))

        yield client


# --- Namespaces, and Java's DistributedLog in them


@pytest.fixture
def unbound(zookeeper: ZooKeeperServer, bookies: Bookies) -> NamespaceSite:
    """A place for a namespace on the bookies that the test names. Nothing is there yet."""
    return NamespaceSite(zookeeper.address, f"/streams-{uuid4().hex}", bookies.uri)


@pytest.fixture
async def namespace(java: JavaPeer, unbound: NamespaceSite) -> NamespaceSite:
    """A new namespace, bound by Apache's own command."""
    await bind(java, unbound)
    return unbound


@pytest.fixture
async def open_namespace(java: JavaPeer, unbound: NamespaceSite) -> AsyncIterator[OpenNamespace]:
    """Opens the namespace in Java, with settings of Java's by name, until the end of the test. It must be bound."""
    async with AsyncExitStack() as stack:

        async def opened(**settings: object) -> JavaNamespace:
            return await stack.enter_async_context(connect_namespace(java, unbound, **settings))

        yield opened


@pytest.fixture
async def raw(unbound: NamespaceSite) -> AsyncIterator[RawStreams]:
    """The nodes and ledgers of the namespace, as our metadata store and our ledger client see them."""
    async with raw_streams(unbound) as found:
        yield found
