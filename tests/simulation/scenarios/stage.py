"""Where scenarios are played: real bookies and real clients, every message of which can be seen and held back.

    held = stage.hold("add", answer=True, entries={3})        # nobody's answer about entry 3 arrives
    ...
    held.release()

A held message was, for everybody else, not sent yet. Writes of metadata can be held as well: `client.writes.hold()`.
Conditions are awaited in simulated time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from quire.bookie.bookie import BookieSettings
from quire.errors import MetadataUnavailable, QuireError, VersionConflict
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.ledger.writing.writer import LedgerWriter
from quire.metadata import Cluster
from quire.metadata.driver import Check, Version
from quire.metadata.ledgers import Ledgers
from quire.rpc import ChannelSettings
from quire.testing import SimBookie, Simulation, sim_cluster, simulate
from quire.types import LedgerId, LedgerMetadata
from tests.simulation.scenarios.messages import Message, answer, request

SEEDS = range(5)
DEADLINE_S = 60.0
SETTINGS = LedgerSettings(read_timeout_s=4.0, speculative_read_s=0.5, change_timeout_s=200.0)
PATIENT = PoolSettings(channel=ChannelSettings(request_timeout_s=100.0))  # Nobody fails for being held back.

Scene = Callable[["Stage"], Awaitable[None]]


class Which(TypedDict, total=False):
    """Which messages are meant; without anything, all requests."""

    answer: bool  # Answers, and no requests.
    entries: Collection[int]  # About these.
    of: Collection[str]  # To these bookies, or from them.
    client: str  # From this client, or to it.


@dataclass
class Hold:
    """Messages of one kind that are held back."""

    matches: Callable[[Message], bool]
    messages: list[Message] = field(default_factory=list)
    sends: list[Callable[[], None]] = field(default_factory=list)
    is_on: bool = True

    def release(self, *, of: Collection[str] | None = None) -> None:
        """Send what is held, and hold nothing more; or only what goes to or comes from these bookies."""
        waiting = list(zip(self.messages, self.sends, strict=True))
        self.messages, self.sends = [], []
        if of is None:
            self.is_on = False
        else:
            matches = self.matches
            self.matches = lambda message: matches(message) and message.bookie not in of
        for message, send in waiting:
            if of is None or message.bookie in of:
                send()
            else:
                self.messages.append(message)
                self.sends.append(send)

    def drop(self) -> None:
        """What is held is lost, and what follows goes its way."""
        self.is_on = False
        self.messages, self.sends = [], []

    @property
    def bookies(self) -> set[str]:
        return {message.bookie for message in self.messages}


class MetadataWrites:
    """What one client writes to ledgers' metadata: counted, and held back on demand."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._write = ledgers.write
        ledgers.write = self._write_or_wait  # type: ignore[method-assign]
        self.tried: list[LedgerMetadata] = []
        self.stored: list[LedgerMetadata] = []
        self.conflicts = 0
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self.is_cut_off = False

    def hold(self) -> None:
        self._may_pass.clear()

    def release(self) -> None:
        self._may_pass.set()

    async def _write_or_wait(
        self, ledger: LedgerId, metadata: LedgerMetadata, *, expected: Version, guard: Check | None = None
    ) -> Version:
        self.tried.append(metadata)
        await self._may_pass.wait()
        if self.is_cut_off:
            raise MetadataUnavailable("this client is cut off")
        try:
            version = await self._write(ledger, metadata, expected=expected, guard=guard)
        except VersionConflict:
            self.conflicts += 1
            raise
        self.stored.append(metadata)
        return version


class Client:
    """A ledger client on a host of its own."""

    def __init__(self, stage: "Stage", name: str, ledgers: LedgerClient, exits: AsyncExitStack) -> None:
        self._stage, self.name, self.ledgers, self._exits = stage, name, ledgers, exits
        self.writes = MetadataWrites(ledgers.ledgers_metadata)

    async def create(self, ensemble: int = 3, write_quorum: int = 3, ack_quorum: int = 2) -> LedgerWriter:
        """A writer that is there until the scene ends. How it ends is nobody's business."""
        created = self.ledgers.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        writer = await created.__aenter__()
        self._exits.push_async_callback(_end_quietly, created)
        return writer

    def cut_off(self) -> None:
        """The client is no more, as far as anybody else can tell: it reaches neither bookies nor metadata again."""
        self.writes.is_cut_off = True
        self._stage.sim.network.crash(self.name)


async def _end_quietly(created: AbstractAsyncContextManager[LedgerWriter]) -> None:
    with suppress(QuireError):
        await created.__aexit__(None, None, None)


class Stage:
    """A cluster with its bookies, and all that was said on it."""

    def __init__(
        self, sim: Simulation, cluster: Cluster, exits: AsyncExitStack, bookies: int, settings: BookieSettings | None
    ) -> None:
        self.sim, self.cluster, self._exits = sim, cluster, exits
        names = [f"b{number}" for number in range(bookies)]
        self.bookies = {name: SimBookie(sim, name, cluster, settings=settings) for name in names}
        self.said: list[Message] = []
        self._holds: list[Hold] = []
        self._clients: list[Client] = []

    # --- Who is there

    async def client(self, name: str = "client", *, settings: LedgerSettings = SETTINGS) -> Client:
        for bookie in self.bookies:
            self.sim.network.tap(name, bookie, self._tap(name, bookie, request))
            self.sim.network.tap(bookie, name, self._tap(bookie, name, answer))
        opened = open_ledgers(
            self.cluster.uri.text, settings=settings, pool_settings=PATIENT, runtime=self.sim.host(name).runtime
        )
        client = Client(self, name, await self._exits.enter_async_context(opened), self._exits)
        self._clients.append(client)
        return client

    async def crash(self, *bookies: str) -> None:
        for bookie in bookies:
            await self.bookies[bookie].crash()

    async def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        return (await self.cluster.ledgers.read(ledger_id)).metadata

    # --- What is said

    def _tap(
        self, source: str, target: str, decode: Callable[[str, str, memoryview], Message]
    ) -> Callable[[bytes, Callable[[], None]], None]:
        def on_frame(frame: bytes, send: Callable[[], None]) -> None:
            message = decode(source, target, memoryview(frame))

            def say() -> None:
                self.said.append(message)
                send()

            for hold in self._holds:
                if hold.is_on and hold.matches(message):
                    hold.messages.append(message)
                    hold.sends.append(say)
                    return
            say()

        return on_frame

    def hold(self, what: str, **which: Unpack[Which]) -> Hold:
        """Hold back messages from now on."""
        hold = Hold(_matcher(what, **which))
        self._holds.append(hold)
        return hold

    def heard(self, what: str, **which: Unpack[Which]) -> list[Message]:
        """What went on its way so far."""
        matches = _matcher(what, **which)
        return [message for message in self.said if matches(message)]

    def release_all(self) -> None:
        for hold in self._holds:
            if hold.is_on:
                hold.release()
        for client in self._clients:
            client.writes.release()

    # --- Time

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Return once `condition` holds. It is asked now and then."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():  # noqa: ASYNC110 - there is no event for most of what scenarios ask about
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"still not true after {DEADLINE_S:g} s: {what}") from None

    async def pass_time(self, seconds: float = 0.5) -> None:
        """Long enough for everything to happen that is under way and not held."""
        await asyncio.sleep(seconds)


def _matcher(what: str, **which: Unpack[Which]) -> Callable[[Message], bool]:
    answers = which.get("answer", False)
    entries, bookies, client = which.get("entries"), which.get("of"), which.get("client")

    def matches(message: Message) -> bool:
        return (
            message.what == what
            and (message.status is not None) == answers
            and (entries is None or message.entry_id in entries)
            and (bookies is None or message.bookie in bookies)
            and (client is None or client in (message.source, message.target))
        )

    return matches


class Appends:
    """Appends under way, each a task of its own: who heard when of what."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer
        self._tasks: list[asyncio.Task[None]] = []
        self.done: dict[int, int] = {}  # Entry id → the LAC when its append returned, in the order of returning.
        self.failures: list[QuireError] = []

    def start(self, count: int) -> None:
        for _ in range(count):
            self._tasks.append(asyncio.create_task(self._append(b"payload")))

    async def _append(self, payload: bytes) -> None:
        try:
            entry_id = await self._writer.append(payload)
            self.done[entry_id] = self._writer.last_add_confirmed
        except QuireError as error:
            self.failures.append(error)

    async def all_over(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*self._tasks)

    async def acknowledged(self) -> None:
        """All of them return, without an error."""
        await self.all_over()
        assert self.failures == []


def payloads(count: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]


def keys(metadata: LedgerMetadata) -> list[int]:
    return [fragment.first_entry_id for fragment in metadata.fragments]


async def read_all(client: Client, ledger_id: LedgerId) -> list[bytes]:
    async with client.ledgers.open(ledger_id) as reader:
        return [entry.payload async for entry in reader.read()]


def play(scene: Scene, seed: int, *, bookies: int = 3, settings: BookieSettings | None = None) -> None:
    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            async with AsyncExitStack() as exits:
                stage = Stage(sim, cluster, exits, bookies, settings)
                for bookie in stage.bookies.values():
                    await bookie.start()
                try:
                    await scene(stage)
                finally:
                    stage.release_all()
            for bookie in stage.bookies.values():
                if bookie.is_running:
                    await bookie.stop()

    simulate(seed, main, time_limit_s=1000)
