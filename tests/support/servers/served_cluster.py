"""A served cluster of real processes, each of which a test can kill, pause, or cut off: ZooKeeper, three bookies, and
proxies that reach ZooKeeper and the bookies by ways of their own.

    with ServedCluster(folder) as cluster:
        served = Served.start(cluster, "ns", writers=2, readers=1)
        async with served.connect() as client: ...
"""

import asyncio
import json
import signal
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, Self

import quire
from quire.codec.batch_checksum import batch_checksum
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.records import LogRecord
from quire.errors import QuireError
from quire.proxy.client.settings import ProxyClientSettings
from quire.rpc.serving import methods
from quire.rpc.serving.grpc_channel import GrpcTransport
from quire.rpc.serving.results import result_of
from quire.runtime import real_runtime
from quire.stream.binding import create_namespace
from tests.support.servers.killable import BookieProcess, Process
from tests.support.servers.ports import free_port
from tests.support.servers.ways import Way, Ways
from tests.support.servers.zookeeper import ZooKeeperServer
from tests.support.waiting import eventually

Role = Literal["write", "read"]

SESSION_S: Final = 1.5
BOOKIES: Final = 3
_START_S: Final = 150.0  # Usually two: tests that load the machine may run beside them.
_CLIENT: Final = ProxyClientSettings(append_timeout_s=30.0, blackout_s=1.0)


class ProxyProcess(Process):
    """`quire write-proxy run` or `quire read-proxy run`. It keeps its port for life."""

    def __init__(
        self,
        role: Role,
        name: str,
        folder: Path,
        uri: str,
        settings: Sequence[str],
        *,
        metadata: dict[int, Way],
        storage: dict[int, Way],
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(name, folder)
        self._options = options
        self._role, self._uri, self._settings, self.port = role, uri, settings, free_port()
        self.admin_port, self.gateway_port = free_port(), free_port()
        self.to_metadata, self.to_storage = list(metadata.values()), list(storage.values())
        self._detours = {port: way.port for port, way in (metadata | storage).items()}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        detours = ",".join(f"{port}={way}" for port, way in self._detours.items())
        return [
            *("-m", "tests.support.servers.detoured", detours, f"{self._role}-proxy", "run"),
            *("--uri", self._uri, "--listen", self.address, "--admin", f"127.0.0.1:{self.admin_port}"),
            *("--gateway", f"127.0.0.1:{self.gateway_port}" if self._role == "read" else "none"),
            *("--session", str(SESSION_S), "--timeout", "2"),
            *(part for each in self._settings for part in ("--set", each)),
            *self._options,
        ]

    def wait_ready(self) -> None:
        self._ready_by(time.monotonic() + _START_S)

    def stop(self) -> None:
        """Ask it to give everything up, and wait until it has."""
        self._send(signal.SIGTERM)
        assert self._process is not None
        assert self._process.wait(_START_S) == 0, self.log_end()
        self._process = None

    def _ready_by(self, deadline_s: float) -> None:
        while not self.is_ready:
            assert not self.died_by_itself, f"{self.name} ended: {self.log_end()}"
            assert time.monotonic() < deadline_s, f"{self.name} did not start: {self.log_end()}"
            time.sleep(0.02)

    @property
    def is_ready(self) -> bool:
        """Whether it would have clients sent to it."""
        try:
            return bool(self._get("/readyz")["ok"])
        except OSError:
            return False

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=20) as answer:
            return json.loads(answer.read())

    def debug(self, part: str) -> Any:
        return self._get(f"/debug/{part}")

    def counted(self, metric: str, **labels: str) -> float:
        """What it counts under a name, for all labels together that have these."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        wanted = [f'{name}="{value}"' for name, value in labels.items()]
        total = 0.0
        for line in lines:
            name, _, value = line.rpartition(" ")
            if name.partition("{")[0] == metric and all(label in name for label in wanted):
                total += float(value)
        return total

    def owns(self, stream: str) -> bool:
        return bool(self.debug("streams").get(stream, {}).get("state") == "INITIALIZED")


class ServedCluster:
    """Metadata and storage, and whatever proxies a test wants, in any number of namespaces."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack = folder, ExitStack()
        self.zookeeper = ZooKeeperServer(folder / "zookeeper")
        self.bookies: list[BookieProcess] = []
        self._proxies = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._ways = stack.enter_context(Ways())
            self.zookeeper.start()
            stack.callback(self.zookeeper.kill)
            asyncio.run(create_namespace(self.uri_of("ns")))
            for number in range(BOOKIES):
                folder = self._folder / "bookies"
                folder.mkdir(exist_ok=True)
                metadata = f"zk://{self.zookeeper.address}/ledgers"
                bookie = BookieProcess(f"b{number}", folder, metadata, session_s=30.0)
                stack.callback(bookie.kill)
                bookie.start()
                self.bookies.append(bookie)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def uri_of(self, namespace: str) -> str:
        return f"distributedlog://{self.zookeeper.address}/{namespace}"

    def launch_proxies(
        self, role: Role, count: int, *settings: str, namespace: str, options: Sequence[str] = ()
    ) -> list[ProxyProcess]:
        """So many more, each with ways of its own. Returns at once."""
        started: list[ProxyProcess] = []
        for _ in range(count):
            self._proxies += 1
            metadata = {self.zookeeper.port: self._ways.to(self.zookeeper.port)}
            storage = {bookie.port: self._ways.to(bookie.port) for bookie in self.bookies}
            usual = [f"write.session_timeout_s={SESSION_S}", "write.graceful_period_s=0.3"]
            proxy = ProxyProcess(
                role,
                f"{role}-{self._proxies}",
                self._folder,
                self.uri_of(namespace),
                [*usual, *settings],
                metadata=metadata,
                storage=storage,
                options=options,
            )
            self._stack.callback(proxy.kill)
            proxy.start()
            started.append(proxy)
        return started

    def way_to(self, port: int) -> Way:
        """For a client that a test can cut off."""
        return self._ways.to(port)


class Served:
    """The proxies of one namespace, as their clients see them."""

    def __init__(self, cluster: ServedCluster, writers: list[ProxyProcess], readers: list[ProxyProcess]) -> None:
        self.cluster, self.writers, self.readers = cluster, writers, readers

    @classmethod
    def start(
        cls,
        cluster: ServedCluster,
        namespace: str,
        *settings: str,
        writers: int = 2,
        readers: int = 1,
        reader_settings: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> "Served":
        """Returns once they serve. `settings` are those of writers."""
        asyncio.run(create_namespace(cluster.uri_of(namespace)))
        started = cls(
            cluster,
            cluster.launch_proxies("write", writers, *settings, namespace=namespace, options=options),
            cluster.launch_proxies("read", readers, *reader_settings, namespace=namespace, options=options),
        )
        for proxy in [*started.writers, *started.readers]:
            proxy.wait_ready()
        return started

    @property
    def namespace(self) -> str:
        return self.writers[0]._uri.rpartition("/")[2]

    def uri(self, scheme: str = "quire") -> str:
        return f"{scheme}://{','.join(proxy.address for proxy in self.writers)}/{self.namespace}"

    def connect(self, *, runtime: Any = None, **settings: Any) -> Any:
        uri = self.uri("quires" if settings.get("tls") else "quire")
        return quire.connect(uri, proxy_settings=replace(_CLIENT, **settings), runtime=runtime)

    def direct(self) -> Any:
        """Past the proxies."""
        return quire.connect(self.cluster.uri_of(self.namespace))

    async def owner_of(self, stream: str) -> ProxyProcess:
        """The proxy that serves it, as soon as one does."""
        found: list[ProxyProcess] = []

        async def is_owned() -> bool:
            found[:] = [proxy for proxy in self.writers if await asyncio.to_thread(_owns, proxy, stream)]
            return bool(found)

        await eventually(is_owned, within_s=30, what=f"somebody owns {stream}")
        return found[0]

    async def owner_and_other(self, stream: str) -> tuple[ProxyProcess, ProxyProcess]:
        owner = await self.owner_of(stream)
        return owner, next(proxy for proxy in self.writers if proxy is not owner)

    async def stored(self, stream: str) -> list[LogRecord]:
        """All of a stream, which is sealed for it."""
        async with self.connect() as client:
            await client.seal_stream(stream)
        async with self.direct() as direct, direct.open_reader(stream) as reader:
            return [record async for record in reader]


def _owns(proxy: ProxyProcess, stream: str) -> bool:
    try:
        return proxy.is_running and not proxy.is_paused and proxy.owns(stream)
    except OSError:
        return False


class Asking:
    """Single calls to a proxy of one's choice, without a client's wisdom: what exactly does it answer?"""

    def __init__(self, client_id: str = "asking") -> None:
        self._transport = GrpcTransport(real_runtime(), client_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._transport.aclose()

    async def write(
        self,
        proxy: ProxyProcess,
        stream: str,
        payload: bytes,
        *,
        producer: pb.Producer | None = None,
        tried: Sequence[str] = (),
        timeout_s: float = 20.0,
    ) -> pb.WriteOnceResponse:
        request = pb.WriteOnceRequest(batch=batch(stream, payload, producer=producer))
        channel = self._transport.channel(proxy.address)
        answer: pb.WriteOnceResponse = await channel.call(
            methods.WRITE_ONCE, request, timeout_s=timeout_s, tried=tuple(tried)
        )
        return answer

    async def result(self, proxy: ProxyProcess, stream: str, payload: bytes, **options: Any) -> pb.Result:
        """What it says of a write, whether it took it or not."""
        try:
            return (await self.write(proxy, stream, payload, **options)).result
        except QuireError as error:
            return self.said(error)

    def said(self, error: QuireError) -> pb.Result:
        """What a proxy said, as it was on the wire; or what it means that it said nothing."""
        result = error.facts.get("result")
        return result if isinstance(result, pb.Result) else result_of(error)

    async def release(self, proxy: ProxyProcess, stream: str, to: ProxyProcess | None = None) -> None:
        request = pb.ReleaseRequest(stream=stream)
        if to is not None:
            request.suggested_owner.host, request.suggested_owner.port = "127.0.0.1", to.port
        await self._transport.channel(proxy.address).call(methods.RELEASE, request, timeout_s=30)

    async def fetch(
        self, proxy: ProxyProcess, stream: str, *, wait_s: float, edge: pb.Edge = pb.LATEST
    ) -> pb.FetchResponse:
        """What comes next at the end of a stream, or at its beginning."""
        request = pb.FetchRequest(
            stream=stream, start=pb.Position(edge=edge), max_wait_ms=round(wait_s * 1000), format=pb.RECORDS
        )
        channel = self._transport.channel(proxy.address)
        answer: pb.FetchResponse = await channel.call(methods.FETCH, request, timeout_s=wait_s + 5)
        return answer

    def pipeline(self, proxy: ProxyProcess) -> Any:
        """A Write call."""
        return self._transport.channel(proxy.address).duplex(methods.WRITE)


def batch(stream: str, *payloads: bytes, **options: Any) -> pb.Batch:
    options = {"create_if_missing": True, "attempt": 1, **options}
    return pb.Batch(stream=stream, records=payloads, crc32c=batch_checksum(stream, payloads), **options)
