"""Real bookies, a writer's client and a reader's client in one simulation, for tests of reading."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from quire.codec.digest import digest_for, master_key
from quire.codec.entry import EntryCodec
from quire.codec.wire import v2, v3
from quire.codec.wire.frames import protocol_version
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.reading.reader import LedgerReader
from quire.ledger.settings import LedgerSettings
from quire.ledger.writing.writer import LedgerWriter
from quire.metadata import Cluster
from quire.rpc import BookieChannel
from quire.testing import SimBookie, SimTree, Simulation, sim_cluster, sim_tree, simulate
from quire.types import DigestType, EntryId, LedgerId

SETTINGS = LedgerSettings(
    window_entries_max=50, read_timeout_s=4.0, speculative_read_s=1.0, speculative_read_s_max=2.0, change_timeout_s=5.0
)
READER = "reader"


@dataclass
class World:
    """`ledgers` is the client of the writer, `readers` is one on a host of its own."""

    sim: Simulation
    cluster: Cluster
    bookies: dict[str, SimBookie]
    ledgers: LedgerClient
    readers: LedgerClient

    @property
    def tree(self) -> SimTree:
        return sim_tree(self.cluster)

    @property
    def now_s(self) -> float:
        return self.sim.loop.time()

    async def pass_time(self, seconds: float) -> None:
        """Let virtual time go by, for things that must not happen."""
        await asyncio.sleep(seconds)

    async def write(self, count: int, quorum: tuple[int, int, int] = (3, 2, 2), *, size: int = 0) -> LedgerWriter:
        """A closed ledger of `count` entries."""
        async with self.create(quorum) as writer:
            for first in range(0, count, 20):
                await writer.append_many([payload(number, size) for number in range(first, min(count, first + 20))])
        return writer

    def create(self, quorum: tuple[int, int, int]) -> AbstractAsyncContextManager[LedgerWriter]:
        ensemble, write_quorum, ack_quorum = quorum
        return self.ledgers.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)

    async def put(self, bookie: str, ledger_id: LedgerId, entry_id: int, body: bytes) -> None:
        """Store bytes as an entry on one bookie, whatever they are."""
        channel = await BookieChannel.connect(self.sim.host("tester").runtime, bookie, self.bookies[bookie].port)
        async with channel:
            sink = _Sink()
            prefix = v2.add_request_prefix(master_key(b""), entry_bytes=len(body), flags=v2.RECOVERY_ADD)
            channel.send_adds(ledger_id, [prefix + body], (EntryId(entry_id),), sink)
            await sink.answered.wait()
            assert (await channel.read(ledger_id, EntryId(entry_id))).body == body

    def break_disk(self, bookie: str) -> None:
        """Let all reads of its entry logs fail, also through files that were opened under their first names."""
        disk = self.bookies[bookie].host.disk
        for name in disk.sizes("/data/entries"):
            disk.faults.fail_reads(name, 0, 1 << 40)
            disk.faults.fail_reads(f"{name}.new", 0, 1 << 40)

    def taps(self) -> "Requests":
        """Count what the reader asks of each bookie from now on."""
        requests = Requests()
        for name in self.bookies:
            self.sim.network.tap(READER, name, partial(requests.on_frame, name))
        return requests


class _Sink:
    def __init__(self) -> None:
        self.answered = asyncio.Event()

    def on_add_answers(self, *answers: object) -> None:
        self.answered.set()

    def on_add_lost(self, *lost: object) -> None:
        raise AssertionError("the bookie did not take the entry")


class Requests:
    """What was asked: single reads by bookie and entry, batches and polls by bookie."""

    def __init__(self) -> None:
        self.reads: list[tuple[str, int]] = []
        self.batches: Counter[str] = Counter()
        self.others: Counter[str] = Counter()
        self.on_batch: Callable[[str], None] = lambda bookie: None
        self.on_read: Callable[[str], None] = lambda bookie: None

    def on_frame(self, bookie: str, frame: bytes, send: Callable[[], None]) -> None:
        body = memoryview(frame)
        if protocol_version(body) == 3:
            self.others[f"{v3.decode_request(body).operation.name} {bookie}"] += 1
        elif body[1] == v2.READ_ENTRY:
            self.reads.append((bookie, v2.decode_read_request(body)[2]))
            self.on_read(bookie)
        elif body[1] == v2.BATCH_READ_ENTRY:
            self.batches[bookie] += 1
            self.on_batch(bookie)
        send()


def payload(number: int, size: int = 0) -> bytes:
    return (b"entry %d " % number).ljust(size, b".")


def stored(ledger_id: LedgerId, entry_id: int, data: bytes, *, lac: int) -> bytes:
    """An entry as a writer sends it."""
    codec = EntryCodec(ledger_id, digest_for(DigestType.CRC32C, b""))
    return codec.prefix(EntryId(entry_id), data, lac=EntryId(lac), length=0) + data


def damaged(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1])


async def read_all(reader: LedgerReader, first: int = 0) -> list[int]:
    """The ids of all confirmed entries as read; their payloads must be those of `payload`."""
    found: list[int] = []
    async for entry in reader.read(first):
        assert entry.payload.rstrip(b".") == payload(entry.entry_id)
        found.append(entry.entry_id)
    return found


async def eventually(condition: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Return once `condition` holds. In virtual time, which costs nothing."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - whatever changes, nobody would tell
            await asyncio.sleep(0.05)


Check: TypeAlias = Callable[[World], Awaitable[None]]


def on_cluster(
    check: Check, *, bookies: int = 3, settings: LedgerSettings = SETTINGS, seeds: int | Sequence[int] = 2
) -> None:
    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            started = {f"b{number}": SimBookie(sim, f"b{number}", cluster) for number in range(bookies)}
            for bookie in started.values():  # Without checks, so that tests can plant damaged copies.
                unchecked = replace(bookie.settings.storage, check_digests=False)
                bookie.settings = replace(bookie.settings, storage=unchecked)
                await bookie.start()

            async def run() -> None:
                async with (
                    open_ledgers(cluster.uri.text, settings=settings, runtime=sim.host("writer").runtime) as ledgers,
                    open_ledgers(cluster.uri.text, settings=settings, runtime=sim.host(READER).runtime) as readers,
                ):
                    await check(World(sim, cluster, started, ledgers, readers))

            await sim.host(READER).spawn(run())
            for bookie in started.values():
                if bookie.is_running:
                    await bookie.stop()

    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        simulate(seed, main, time_limit_s=900)
