"""A client that speaks to a simulated bookie in raw frames, in both versions, and keeps every answer as it came.

    def test_…() -> None:
        async def check(world: World) -> None:
            answer = await world.client.ask(V2.add(LEDGER, 0))
            ...
        with_bookie(check)

At the end of a test nothing of any client may be left in the bookie, and no task of it may have failed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from struct import Struct
from typing import Any, NamedTuple, Protocol, cast

from quire.bookie.bookie import BookieSettings
from quire.bookie.identity import BookieFolders
from quire.bookie.ledger_storage import LedgerStorage
from quire.bookie.service import BookieService
from quire.bookie.settings import ServerSettings, StorageSettings
from quire.bookie.space import SpaceSettings
from quire.codec.wire import v2, v3
from quire.codec.wire.codes import Status
from quire.codec.wire.frames import FrameSplitter
from quire.codec.wire.v3_messages import (
    AddRequest,
    AddResponse,
    ReadFlag,
    ReadRequest,
    ReadResponse,
    RequestContent,
    Response,
    WriteLacRequest,
)
from quire.metadata import Cluster
from quire.testing import SimBookie, Simulation, sim_cluster, simulate
from quire.testing.sim_bookie import SMALL_STORAGE
from quire.types import EntryId, LedgerId

DEADLINE_S = 600.0  # Of virtual time.
LEDGER = LedgerId(7)
KEY = bytes(range(20))
WRONG_KEY = bytes(20)
LAST = EntryId(-1)

_ENTRY_HEADER = Struct(">qqqq")
_LAC_HEADER = Struct(">qq")


def entry(ledger_id: int, entry_id: int, payload: bytes = b"payload", *, lac: int | None = None) -> bytes:
    """A whole entry without a digest. Its LAC is the entry before, unless told otherwise."""
    lac = entry_id - 1 if lac is None else lac
    return _ENTRY_HEADER.pack(ledger_id, entry_id, lac, len(payload)) + payload


def lac_packet(ledger_id: int, lac: int) -> bytes:
    return _LAC_HEADER.pack(ledger_id, lac)


def write_lac(lac: int, *, ledger_id: LedgerId = LEDGER, key: bytes = KEY) -> WriteLacRequest:
    return WriteLacRequest(ledger_id, EntryId(lac), key, lac_packet(ledger_id, lac))


def long_poll(
    previous: int,
    wait_ms: int | None,
    *,
    ledger_id: LedgerId = LEDGER,
    flag: ReadFlag | None = ReadFlag.ENTRY_PIGGYBACK,
) -> ReadRequest:
    return ReadRequest(ledger_id, LAST, None, EntryId(previous), wait_ms, flag)


class Answer(NamedTuple):
    """What both versions have in common."""

    status: Status
    ledger_id: int
    entry_id: int
    body: bytes | None = None


class Version(Protocol):
    """Adds and reads in one version of the protocol."""

    number: int

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        body: bytes | None = None,
        *,
        key: bytes = KEY,
        recovery: bool = False,
        priority: bool = False,
    ) -> bytes: ...

    def read(self, ledger_id: int, entry_id: int, *, fence: bytes | None = None, priority: bool = False) -> bytes: ...

    def answer(self, frame: bytes) -> Answer: ...


class _Version2:
    number = 2

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        body: bytes | None = None,
        *,
        key: bytes = KEY,
        recovery: bool = False,
        priority: bool = False,
    ) -> bytes:
        body = entry(ledger_id, entry_id) if body is None else body
        flags = v2.RECOVERY_ADD * recovery | v2.HIGH_PRIORITY * priority
        return v2.add_request_prefix(key, entry_bytes=len(body), flags=flags) + body

    def read(self, ledger_id: int, entry_id: int, *, fence: bytes | None = None, priority: bool = False) -> bytes:
        flags = v2.DO_FENCING * (fence is not None) | v2.HIGH_PRIORITY * priority
        return v2.encode_read_request(LedgerId(ledger_id), EntryId(entry_id), flags=flags, master_key=fence)

    def answer(self, frame: bytes) -> Answer:
        body = memoryview(frame)[4:]
        version, opcode, flags = v2.decode_header(body)
        assert (version, flags) == (2, 0)
        if opcode == v2.ADD_ENTRY:
            assert len(body) == 24
            return Answer(*v2.decode_add_response(body))
        assert opcode == v2.READ_ENTRY
        status, ledger_id, entry_id, data = v2.decode_read_response(body)
        return Answer(status, ledger_id, entry_id, None if data is None else bytes(data))


class _Version3:
    number = 3

    def __init__(self) -> None:
        self._txn_id = 0

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        body: bytes | None = None,
        *,
        key: bytes = KEY,
        recovery: bool = False,
        priority: bool = False,
    ) -> bytes:
        body = entry(ledger_id, entry_id) if body is None else body
        content = AddRequest(LedgerId(ledger_id), EntryId(entry_id), key, body, recovery=recovery)
        return self.frame(content, priority=priority)

    def read(self, ledger_id: int, entry_id: int, *, fence: bytes | None = None, priority: bool = False) -> bytes:
        flag = None if fence is None else ReadFlag.FENCE_LEDGER
        content = ReadRequest(LedgerId(ledger_id), EntryId(entry_id), fence, flag=flag)
        return self.frame(content, priority=priority)

    def frame(self, content: RequestContent, *, priority: bool = False) -> bytes:
        self._txn_id += 1
        return v3.encode_request(self._txn_id, content, priority=100 * priority)

    def answer(self, frame: bytes) -> Answer:
        response = decoded(frame)
        content = response.content
        assert isinstance(content, AddResponse | ReadResponse)  # Also with an error.
        body = content.body if isinstance(content, ReadResponse) else None
        return Answer(response.status, content.ledger_id, content.entry_id, body)


V2 = _Version2()
V3 = _Version3()


def decoded(frame: bytes) -> Response:
    return v3.decode_response(memoryview(frame)[4:])


class RawClient(asyncio.Protocol):
    """One connection. Answers wait in `frames`, whole and in the order in which they came."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.is_lost = False
        self._splitter = FrameSplitter(frame_bytes_max=1 << 30)
        self._changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.frames += [len(body).to_bytes(4, "big") + body for body in self._splitter.split(data)]
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._changed.set()

    def send(self, *parts: bytes) -> None:
        self.transport.write(b"".join(parts))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds. It is asked after every event of this connection."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def frame(self) -> bytes:
        """The next answer."""
        await self.until(lambda: bool(self.frames) or self.is_lost)
        assert self.frames, "the bookie closed the connection"
        return self.frames.popleft()

    async def ask(self, frame: bytes) -> bytes:
        """Send one request and return the next answer."""
        self.send(frame)
        return await self.frame()

    async def ask_v3(self, content: RequestContent, *, priority: bool = False) -> Response:
        return decoded(await self.ask(V3.frame(content, priority=priority)))

    async def add(
        self, version: Version, ledger_id: int, entry_id: int, body: bytes | None = None, **options: Any
    ) -> Answer:
        return version.answer(await self.ask(version.add(ledger_id, entry_id, body, **options)))

    async def read(self, version: Version, ledger_id: int, entry_id: int, **options: Any) -> Answer:
        return version.answer(await self.ask(version.read(ledger_id, entry_id, **options)))

    async def closed(self) -> None:
        """Return once the bookie has closed the connection, having sent nothing that was not taken from `frames`."""
        await self.until(lambda: self.is_lost)
        assert not self.frames

    def close(self) -> None:
        self.transport.abort()


class World:
    """A bookie that runs, and a client of it."""

    def __init__(self, sim: Simulation, bookie: SimBookie) -> None:
        self.sim, self.bookie = sim, bookie
        self.client: RawClient
        self._connections = 0

    @property
    def service(self) -> BookieService:
        return self.bookie.bookie.service

    @property
    def storage(self) -> LedgerStorage:
        return self.service.storage

    async def connect(self) -> RawClient:
        self._connections += 1
        network = self.sim.host(f"client{self._connections}").runtime.network
        _, client = await network.connect(self.bookie.host.name, self.bookie.port, RawClient, timeout_s=60)
        return client

    async def restart(self, *, crash: bool = False) -> None:
        """The bookie goes and comes back, and so does the client."""
        await (self.bookie.crash() if crash else self.bookie.stop())
        await self.bookie.start()
        self.client = await self.connect()

    def slow_syncs(self, seconds: float) -> None:
        self.bookie.host.disk.faults.latency_by_operation_s["sync"] = (seconds, seconds)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds. It is asked now and then."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110 - the bookie has no event for most of what tests ask about
                await asyncio.sleep(0.01)

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def leave(self) -> None:
        """Every client goes; nothing of them may stay."""
        for connection in list(self.service.connections):
            connection.abort()
        await self.until(lambda: not leftovers(self.service))


def leftovers(service: BookieService) -> dict[str, Any]:
    """What a bookie without clients should not have any more."""
    waiters = [waiter for ledger in service.storage.table.by_id.values() for waiter in ledger.waiters]
    kept = {
        "connections": len(service.connections),
        "half frames": service.half_frames,
        "half bytes": service._half_bytes,
        "awaiting": [each for each in service._awaiting if each],
        "throttled": service._throttled,
        "tasks": service._tasks,
        "reads": (service.reads.queued, service.reads._queues, service.reads._waiting, service.reads._running),
        "waiters": waiters,
        "LACs asked for": service._lac_askers,
        "adds in progress": service.metrics.requests.adds_in_progress.value,
    }
    return {name: value for name, value in kept.items() if value and value != (0, {}, deque(), 0)}


class _FailedTasks(logging.Handler):
    """Tasks of the bookie that failed are only logged, so that the others go on."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", "") == "task.failed":
            self.errors.append(record.getMessage())


@contextmanager
def no_task_fails() -> Iterator[None]:
    handler, log = _FailedTasks(), logging.getLogger("quire")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
    assert handler.errors == []


def bookie_settings(
    *,
    journals: int = 1,
    server: ServerSettings | None = None,
    storage: StorageSettings = SMALL_STORAGE,
    checkpoint_interval_s: float = 0.5,
) -> BookieSettings:
    return BookieSettings(
        BookieFolders("/data", tuple(f"/journal{number}" for number in range(journals))),
        checkpoint_interval_s=checkpoint_interval_s,
        storage=storage,
        server=server or ServerSettings(),
        space=SpaceSettings(reserve_bytes=0),
    )


def with_bookie(
    check: Callable[[World], Awaitable[None]], *, seed: int = 1, settings: BookieSettings | None = None
) -> None:
    """Run `check` in a simulation with one bookie and one client connected to it."""

    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            await in_cluster(sim, cluster)

    async def in_cluster(sim: Simulation, cluster: Cluster) -> None:
        world = World(sim, SimBookie(sim, "b1", cluster, settings=settings or bookie_settings()))
        await world.bookie.start()
        world.client = await world.connect()
        await check(world)
        assert world.bookie.is_running
        await world.leave()
        await world.bookie.stop()

    with no_task_fails():
        simulate(seed, main)


ROOMY = replace(SMALL_STORAGE, cache_bytes_max=1 << 20)  # Nothing is throttled, and nothing leaves the cache soon.
