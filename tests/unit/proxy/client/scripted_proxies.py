"""Proxies that do as a test tells them, on the simulated network: a client cannot tell them from real ones.

What they know is shared and kept in memory: who owns which stream, and its records. A proxy decides about a batch as
the specification says, unless a test has put something else into its `script`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from quire.codec.batch_checksum import batch_checksum
from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import AppendCancelled, NoSuchStream, NotOwner, ProxyDraining, QuireError, TxidOutOfOrder
from quire.proxy.client.client import ProxyClient, open_proxy_client
from quire.proxy.client.settings import ProxyClientSettings
from quire.rpc.serving import methods
from quire.rpc.serving.results import result_of
from quire.rpc.serving.transport import Caller, Handlers
from quire.stream.settings import StreamSettings
from quire.testing import Simulation, simulate
from quire.testing.sim_calls import SimTransport, bind_sim

PORT = 7400
NAMESPACE = "ns"
SETTINGS = StreamSettings(call_timeout_s=10.0)
CLIENT = ProxyClientSettings(append_timeout_s=5.0, connect_timeout_s=5.0)


class LoseAnswer(Exception):
    """Store the batch, and end the call without a word."""


class Never(Exception):
    """Store the batch, and say nothing about it, but live on."""


Verdict = QuireError | type[Exception] | None
"""What a proxy says of a batch: an error, nothing, or None for what is right."""


@dataclass
class Stored:
    payload: bytes
    place: tuple[int, int, int]
    producer: bytes
    seq: int


@dataclass
class FakeStream:
    owner: str | None = None
    epoch: int = 0
    entries: int = 0
    records: list[Stored] = field(default_factory=list)
    is_forgetful: bool = False  # Of where records are.

    @property
    def payloads(self) -> list[bytes]:
        return [record.payload for record in self.records]


def owner_of(address: str) -> pb.Owner:
    host, _, port = address.partition(":")
    return pb.Owner(host=host, port=int(port), instance=host)


@dataclass
class Proxies:
    """All proxies of one simulation, and what they know."""

    sim: Simulation
    streams: dict[str, FakeStream] = field(default_factory=dict)
    proxies: dict[str, "ScriptedProxy"] = field(default_factory=dict)
    alive: dict[str, int] = field(default_factory=dict)  # Addresses and roles, as the metadata lists them.
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def pass_time(self, seconds: float) -> None:
        """Let virtual time go by."""
        await asyncio.sleep(seconds)

    def stream(self, name: str) -> FakeStream:
        return self.streams.setdefault(name, FakeStream())

    async def start(self, name: str, role: int = pb.WRITE_PROXY) -> "ScriptedProxy":
        proxy = ScriptedProxy(self, f"{name}:{PORT}", role)
        self.proxies[name] = proxy
        await self.sim.host(name).spawn(proxy.start())
        self.alive[proxy.address] = role
        self.tell()
        return proxy

    def tell(self) -> None:
        """Members have changed."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def kill(self, name: str) -> None:
        """As kill -9 does. Its session lives on: `expire` ends it."""
        await self.sim.host(name).crash(power_loss=False)

    def expire(self, name: str) -> None:
        """Its session ends: it is not a member any more, and its streams are free."""
        address = f"{name}:{PORT}"
        self.alive.pop(address, None)
        for stream in self.streams.values():
            if stream.owner == address:
                stream.owner = None
        self.tell()

    def members(self) -> list[pb.Member]:
        return [pb.Member(role=role, address=owner_of(each)) for each, role in self.alive.items()]  # type: ignore[arg-type]

    @asynccontextmanager
    async def client(
        self,
        *seeds: str,
        host: str = "client",
        settings: StreamSettings = SETTINGS,
        client_settings: ProxyClientSettings = CLIENT,
    ) -> AsyncIterator[ProxyClient]:
        runtime = self.sim.host(host).runtime
        transport = SimTransport(runtime, host)
        authority = ",".join(f"{seed}:{PORT}" for seed in seeds or self.proxies)
        try:
            async with open_proxy_client(
                f"quire://{authority}/{NAMESPACE}",
                settings=settings,
                client_settings=client_settings,
                client_id=host,
                transport=transport,
                runtime=runtime,
            ) as client:
                yield client
        finally:
            await transport.aclose()


class ScriptedProxy:
    def __init__(self, world: Proxies, address: str, role: int) -> None:
        self.world, self.address, self.role = world, address, role
        self.script: deque[Verdict] = deque()  # For the next batches.
        self.refusals: deque[QuireError] = deque()  # For the next single calls.
        self.batches: list[pb.Batch] = []
        self.requests: list[tuple[str, Any, Caller]] = []
        self.window_batches, self.window_bytes = 256, 4 << 20
        self.in_flight_most = 0
        self.hold: asyncio.Event | None = None  # Answers wait for it.
        self.go_aways: deque[pb.GoAway] = deque()
        self.is_silent = False
        self.read_script: deque[Callable[[pb.ReadRequest], list[Any]]] = deque()

    async def start(self) -> None:
        name, _, port = self.address.partition(":")
        server = await bind_sim(self.world.sim.host(name).runtime, name, int(port))
        await server.start(self.handlers())

    def handlers(self) -> Handlers:
        return {
            methods.HANDSHAKE: self.handshake,
            methods.WATCH_OWNERSHIP: self.watch,
            methods.WRITE: self.write,
            methods.READ: self.read,
            **{
                method: self._single(method.name)
                for method in methods.METHODS.values()
                if not method.client_streams and not method.server_streams and method is not methods.HANDSHAKE
            },
        }

    # --- Who is there

    async def handshake(self, request: pb.HandshakeRequest, caller: Caller) -> pb.HandshakeResponse:
        await self._listening()
        return pb.HandshakeResponse(server_id=self.address, namespace=NAMESPACE, members=self.world.members())

    async def watch(self, request: pb.WatchOwnershipRequest, caller: Caller) -> AsyncIterator[pb.OwnershipChange]:
        while True:
            changed = self.world.changed
            yield pb.OwnershipChange(members=self.world.members(), members_changed=True)
            await changed.wait()

    async def _listening(self) -> None:
        while self.is_silent:  # noqa: ASYNC110 - tests set it as they like
            await asyncio.sleep(1.0)

    # --- Single calls

    def _single(self, name: str) -> Callable[[Any, Caller], Awaitable[Any]]:
        async def answer(request: Any, caller: Caller) -> Any:
            self.requests.append((name, request, caller))
            await self._listening()
            if self.refusals:
                raise self.refusals.popleft()
            return await getattr(self, f"on_{name.lower()}", self.on_other)(request)

        return answer

    async def on_other(self, request: Any) -> Any:
        return pb.StreamResponse()

    async def on_heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        stream = self._owned(request.stream, create=request.create_if_missing)
        return pb.HeartbeatResponse(owner=owner_of(self.address), epoch=stream.epoch, last_txid=7)

    async def on_seal(self, request: pb.StreamRequest) -> pb.StreamResponse:
        self._owned(request.stream)
        return pb.StreamResponse()

    async def on_truncate(self, request: pb.TruncateRequest) -> pb.TruncateResponse:
        self._owned(request.stream)
        return pb.TruncateResponse(first=request.before.dlsn, segments=2)

    def _owned(self, name: str, *, create: bool = True) -> FakeStream:
        if name not in self.world.streams and not create:
            raise NoSuchStream(f"there is no stream {name!r}")
        stream = self.world.stream(name)
        if stream.owner is None:
            stream.owner, stream.epoch, stream.entries = self.address, stream.epoch + 1, 0
        if stream.owner != self.address:
            raise NotOwner(
                f"{stream.owner} has stream {name!r}",
                proxy=owner_of(stream.owner),
                owner_live=stream.owner in self.world.alive,
                epoch=stream.epoch,
            )
        return stream

    # --- Batches

    async def write(self, requests: AsyncIterator[pb.WriteRequest], caller: Caller) -> AsyncIterator[pb.WriteResponse]:
        await self._listening()
        answers: asyncio.Queue[pb.WriteResponse | None] = asyncio.Queue()
        opened = pb.Opened(server_id=self.address, window_batches=self.window_batches, window_bytes=self.window_bytes)
        failed: dict[str, int] = {}
        held: list[pb.WriteResponse] = []
        unanswered = 0

        def answer(ack: pb.Ack) -> None:
            held.append(pb.WriteResponse(ack=ack))
            if self.hold is None or self.hold.is_set():
                release()

        def release() -> None:
            for each in held:
                answers.put_nowait(each)
            held.clear()

        async def release_later() -> None:
            while True:
                await asyncio.sleep(0.01)
                if self.hold is not None and self.hold.is_set():
                    release()

        async def take() -> None:
            nonlocal unanswered
            async for request in requests:
                if request.HasField("open"):
                    answers.put_nowait(pb.WriteResponse(opened=opened))
                elif request.HasField("ping"):
                    await self._listening()
                    answers.put_nowait(pb.WriteResponse(pong=pb.Pong(number=request.ping.number)))
                else:
                    unanswered += 1
                    self.in_flight_most = max(self.in_flight_most, unanswered)
                    try:
                        answer(self._on_batch(request.batch, failed))
                    except LoseAnswer:
                        answers.put_nowait(None)
                    except Never:
                        pass
                while self.go_aways:
                    answers.put_nowait(pb.WriteResponse(go_away=self.go_aways.popleft()))

        taking = [asyncio.create_task(take()), asyncio.create_task(release_later())]
        try:
            while (response := await answers.get()) is not None:
                await self._listening()
                unanswered -= response.HasField("ack")
                yield response
            raise ProxyDraining("the call ends without an answer")
        finally:
            for task in taking:
                task.cancel()
            await asyncio.wait(taking)

    def _on_batch(self, batch: pb.Batch, failed: dict[str, int]) -> pb.Ack:
        kept = pb.Batch()
        kept.CopyFrom(batch)
        self.batches.append(kept)
        ack = pb.Ack(call_seq=batch.call_seq)
        try:
            if failed.get(batch.stream, 0) >= batch.attempt:
                raise AppendCancelled("a batch before it failed", code=int(pb.PREDECESSOR_FAILED))
            verdict = self.script.popleft() if self.script else None
            if isinstance(verdict, QuireError):
                raise verdict
            self._store(batch, ack)
            if verdict is not None:
                raise verdict
        except QuireError as error:
            failed[batch.stream] = batch.attempt
            ack.result.CopyFrom(result_of(error))
        return ack

    def _store(self, batch: pb.Batch, ack: pb.Ack) -> None:
        records = [batch.record_set.data] if batch.HasField("record_set") else list(batch.records)
        assert batch_checksum(batch.stream, records) == batch.crc32c
        stream = self._owned(batch.stream, create=batch.create_if_missing)
        count = batch.record_set.count or len(records)
        known = {r.seq: r for r in stream.records if r.producer == batch.producer.id and batch.producer.id}
        first = batch.producer.first_seq
        ack.result.code, ack.result.applied = pb.OK, pb.YES
        ack.txid_first = ack.txid_last = 100 + len(stream.records)
        if first in known:
            ack.result.code = pb.DUPLICATE
            if not stream.is_forgetful:
                ack.placed.extend(_placed(known[first + each].place) for each in range(count))
            return
        if batch.producer.id and known and first != max(known) + 1:
            raise TxidOutOfOrder(f"{max(known) + 1} should follow, not {first}")
        for place in range(count):
            where = (stream.epoch, stream.entries, place)
            payload = records[place] if len(records) > 1 or count == 1 else b"%d of a set" % place
            stream.records.append(Stored(payload, where, batch.producer.id, first + place))
        ack.placed.append(pb.Placed(first=_dlsn((stream.epoch, stream.entries, 0)), count=count))
        stream.entries += 1

    # --- Entries

    async def read(self, request: pb.ReadRequest, caller: Caller) -> AsyncIterator[pb.ReadEvent]:
        """Each call takes the next part of the script: events, errors, and numbers of seconds to wait."""
        self.requests.append(("Read", request, caller))
        await self._listening()
        if not self.read_script:
            await asyncio.sleep(3600)
            return
        for item in self.read_script.popleft()(request):
            if isinstance(item, Exception):
                raise item
            if isinstance(item, int | float):
                await asyncio.sleep(item)
            else:
                yield item


def _dlsn(place: tuple[int, int, int]) -> pb.Dlsn:
    return pb.Dlsn(lssn=place[0], entry_id=place[1], slot_id=place[2])


def _placed(place: tuple[int, int, int]) -> pb.Placed:
    return pb.Placed(first=_dlsn(place), count=1)


def with_proxies(check: Callable[[Proxies], Awaitable[None]], *, seeds: int = 3, time_limit_s: float = 300.0) -> None:
    async def main(sim: Simulation) -> None:
        await sim.host("client").spawn(check(Proxies(sim)))  # type: ignore[arg-type]

    for seed in range(seeds):
        simulate(seed, main, time_limit_s=time_limit_s)
