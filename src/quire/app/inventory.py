"""What a cluster has, looked at from all sides: ledgers in the metadata, bookies and their disks, streams and segments.

    async with open_operations(target) as operations:
        inventory = await take_inventory(operations)

Operators' commands (`quire capacity`, `quire check`, `quire rebalance`, `quire bookie decommission`) decide on such an
inventory, in pure code. Nothing is created or changed by taking one.

Ledgers are listed before streams are read, so that a ledger that a segment names was there, or is gone for good; a
ledger that is begun meanwhile is in neither list.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field
from functools import partial
from typing import Final, TypeVar

from quire.codec.stream_metadata.binding import NamespaceBinding
from quire.codec.stream_metadata.segment import Segment, decode_segment
from quire.codec.stream_metadata.sinks import StagedNode, decode_sink, decode_staged
from quire.codec.stream_metadata.tree import StreamPaths, decode_allocation
from quire.errors import DamagedMetadata, InvalidArgument, NoSuchLedger, NoSuchNode, QuireError
from quire.ledger.bookies.placing import PlacementSettings
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata import Cluster, MetadataStore, StoredLedger, StoreSettings, open_cluster, open_store, parse_uri
from quire.metadata.paths import join
from quire.protocol.capacity import BookieSpace
from quire.protocol.shares import LedgerEnd
from quire.rpc import ChannelSettings
from quire.runtime import Runtime, real_runtime
from quire.stream.binding import bound_ledgers, open_bound, scan_namespaces
from quire.stream.cold_nodes import StoredCold, is_unchanged, read_cold
from quire.stream.info import lock_holder
from quire.stream.listing import scan_streams
from quire.stream.uri import namespace_in, parse_stream_uri
from quire.types import NO_ENTRY, BookieId, EntryId, LedgerId, LedgerState
from quire.values import dataclass

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE_MAX: Final = 32
_READS_MAX: Final = 5
_LISTINGS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster, and which namespaces of it. Without a metadata URI it is that of the first namespace.

    Without namespaces they are those that the store itself has, if it is a file of this machine.
    """

    metadata: str | None
    namespaces: tuple[str, ...] = ()
    timeout_s: float = 30.0
    racks_file: str | None = None


@dataclass(frozen=True, slots=True)
class OpenNamespace:
    """A namespace, to be looked at."""

    uri: str
    path: str
    store: MetadataStore
    binding: NamespaceBinding


@dataclass(frozen=True, slots=True)
class Operations:
    """A cluster and namespaces of it, open for an operator."""

    runtime: Runtime
    uri: str
    """Of the cluster's metadata."""

    cluster: Cluster
    ledgers: LedgerClient
    namespaces: tuple[OpenNamespace, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment's node: what it says, or why that cannot be read."""

    name: str
    segment: Segment | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """One stream, as its nodes say."""

    namespace: str
    stream: str
    segments: tuple[SegmentFacts, ...]
    allocated: LedgerId | None
    owner: str | None
    """Who holds the lock of its writers."""

    also: Mapping[LedgerId, str] = field(default_factory=dict)
    """Ledgers that archiving left, and the nodes that name them."""

    problems: tuple[str, ...] = ()
    """Of nodes that cannot be read."""

    cold: tuple[StoredCold, ...] = ()
    """What is archived."""

    staged: tuple[StagedNode, ...] = ()
    """Ledgers that sinks wrote beside the stream, to make them segments."""

    @property
    def name(self) -> str:
        return f"{self.namespace.rstrip('/')}/{self.stream}"

    @property
    def ledger_ids(self) -> frozenset[LedgerId]:
        """All ledgers that the stream names."""
        named = {each.segment.ledger_id for each in self.segments if each.segment is not None}
        named |= {each.ledger for each in self.staged} | set(self.also)
        return frozenset(named if self.allocated is None else {*named, self.allocated})


@dataclass(slots=True)
class Inventory:
    """What was found. `ends` says where ledgers end; of those that are open, how far they had come."""

    now_ms: int
    writable: frozenset[BookieId]
    readonly: frozenset[BookieId]
    known: frozenset[BookieId]
    ledgers: dict[LedgerId, StoredLedger] = field(default_factory=dict)
    damaged: dict[LedgerId, str] = field(default_factory=dict)
    ends: dict[LedgerId, LedgerEnd] = field(default_factory=dict)
    unanswered: dict[LedgerId, str] = field(default_factory=dict)
    """Open ledgers whose length no bookie told, and why."""

    streams: list[StreamFacts] = field(default_factory=list)

    @property
    def registered(self) -> frozenset[BookieId]:
        return self.writable | self.readonly

    def owner_of(self) -> dict[LedgerId, StreamFacts]:
        """Whose ledger it is, of those that a stream names."""
        return {ledger: stream for stream in self.streams for ledger in stream.ledger_ids}


@asynccontextmanager
async def open_operations(target: Target, *, runtime: Runtime | None = None) -> AsyncIterator[Operations]:
    """Raises `InvalidArgument` if a namespace belongs to another cluster, and what opening stores raises."""
    runtime = runtime or real_runtime()
    store_settings = StoreSettings(create_missing=False, operation_timeout_s=min(10.0, target.timeout_s))
    async with AsyncExitStack() as stack:
        namespaces, metadata = [], target.metadata
        for uri in target.namespaces or await _local_namespaces(metadata, store_settings, runtime):
            parsed = parse_stream_uri(uri)
            store, found = await stack.enter_async_context(
                open_bound(parsed, create=False, settings=store_settings, runtime=runtime)
            )
            bound = bound_ledgers(parsed, found)
            if metadata is None:
                metadata = bound
            elif parse_uri(bound).root != parse_uri(metadata).root:
                raise InvalidArgument(
                    f"the streams at {uri!r} are in another cluster, {bound!r}",
                    hint="Give namespaces of one cluster only.",
                )
            namespaces.append(OpenNamespace(uri, parsed.path, store, found.binding.resolved(parsed.authority)))
        if metadata is None:
            raise InvalidArgument("no cluster is named", hint="Give --metadata or --uri.")
        cluster = await stack.enter_async_context(open_cluster(metadata, settings=store_settings, runtime=runtime))
        timeout_s = target.timeout_s
        ledgers = await stack.enter_async_context(
            open_ledgers(
                metadata,
                settings=LedgerSettings(call_timeout_s=timeout_s, read_timeout_s=timeout_s / 2),
                pool_settings=PoolSettings(
                    channel=ChannelSettings(connect_timeout_s=timeout_s / 2, request_timeout_s=timeout_s)
                ),
                placement=PlacementSettings(racks_file=target.racks_file),
                store_settings=store_settings,
                runtime=runtime,
            )
        )
        yield Operations(runtime, metadata, cluster, ledgers, tuple(namespaces), timeout_s)


async def _local_namespaces(metadata: str | None, settings: StoreSettings, runtime: Runtime) -> list[str]:
    if metadata is None or (parsed := parse_uri(metadata)).backend != "sqlite":
        return []
    async with open_store(parsed, settings=settings, runtime=runtime) as store:
        return [namespace_in(parsed, path).text async for path in scan_namespaces(store, parsed.root)]


async def take_inventory(operations: Operations, *, with_lengths: bool = True) -> Inventory:
    """Look at everything. Without `with_lengths` open ledgers are not asked how long they are."""
    cluster = operations.cluster
    listing, known = await cluster.bookies.listing(), await cluster.bookies.known()
    inventory = Inventory(operations.runtime.clock.wall_ms(), listing.writable, listing.readonly, known)
    await read_ledgers(operations, [each async for each in cluster.ledgers.scan()], inventory)
    if with_lengths:
        growing = [ledger for ledger in inventory.ledgers if ledger not in inventory.ends]
        await in_parts(growing, partial(_ask_length, operations, inventory))
    inventory.streams += await read_streams(operations)
    return inventory


async def read_streams(operations: Operations) -> list[StreamFacts]:
    """All streams of all namespaces. One that is renamed meanwhile would be read under neither of its names, and its
    ledgers would look like nobody's: so names are listed until there is none that was not read."""
    found: list[StreamFacts] = []
    for namespace in operations.namespaces:
        read: set[str] = set()
        for _ in range(_LISTINGS_MAX):
            new = [name async for name in scan_streams(namespace.store, namespace.path) if name not in read]
            if not new:
                break
            found += await in_parts(new, partial(read_stream, namespace))
            read.update(new)
    return found


async def read_streams_again(operations: Operations, inventory: Inventory, wanted: Collection[tuple[str, str]]) -> None:
    """Take what these streams, by namespace and name, are by now into the inventory. Some may be deleted."""
    for place, facts in enumerate(inventory.streams):
        if (facts.namespace, facts.stream) in wanted:
            namespace = next(each for each in operations.namespaces if each.uri == facts.namespace)
            inventory.streams[place] = await read_stream(namespace, facts.stream)


async def read_ledgers(operations: Operations, wanted: Iterable[LedgerId], inventory: Inventory) -> None:
    """Take the metadata of these ledgers into the inventory, as far as they exist."""

    async def read(ledger: LedgerId) -> None:
        try:
            stored = await operations.cluster.ledgers.read(ledger)
        except NoSuchLedger:
            return
        except DamagedMetadata as error:
            inventory.damaged[ledger] = str(error)
            return
        inventory.ledgers[ledger] = stored
        if stored.metadata.state is LedgerState.CLOSED:
            inventory.ends[ledger] = LedgerEnd(stored.metadata.last_entry_id, stored.metadata.length)

    await in_parts(list(wanted), read)


async def _ask_length(operations: Operations, inventory: Inventory, ledger: LedgerId) -> None:
    """How far an open ledger has come, from its last confirmed entry. Its writer is not disturbed."""
    metadata = inventory.ledgers[ledger].metadata
    try:
        async with operations.ledgers.open(ledger, password=metadata.password or b"", recover=False) as reader:
            last = reader.last_add_confirmed
            length = (await reader.read_entry(last)).length if last != NO_ENTRY else 0
        inventory.ends[ledger] = LedgerEnd(EntryId(last), length)
    except QuireError as error:
        inventory.unanswered[ledger] = str(error)


async def ask_spaces(operations: Operations, inventory: Inventory) -> list[BookieSpace]:
    """The disks of all registered bookies. One that does not answer has none."""

    async def ask(bookie: BookieId) -> BookieSpace | None:
        try:
            channel = await operations.ledgers.pool.connect(bookie, 3, timeout_s=operations.timeout_s / 2)
            info = await channel.bookie_info(timeout_s=operations.timeout_s)
        except QuireError:
            return None
        free, total = info.free_disk_bytes or 0, info.total_disk_bytes or 0
        return BookieSpace(bookie, bookie in inventory.writable, free, total)

    return [space for space in await in_parts(sorted(inventory.registered), ask) if space is not None]


# --- Streams


async def read_stream(namespace: OpenNamespace, stream: str) -> StreamFacts:
    """All nodes of a stream, as they were at one moment: not that of a segment that is just moving from one name to
    another, or from bookies to cold storage. Of a stream that never rests it is what was read last.
    """
    store, paths = namespace.store, StreamPaths(namespace.path, stream)
    for _ in range(_READS_MAX):
        before = await _shape(store, paths)
        facts = await _stream_facts(namespace, paths)
        if await _shape(store, paths) == before and await _is_settled(store, paths, facts):
            break
    return facts


async def _shape(store: MetadataStore, paths: StreamPaths) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(await _names(store, paths.segments)), frozenset(await _names(store, paths.cold))


async def _is_settled(store: MetadataStore, paths: StreamPaths, facts: StreamFacts) -> bool:
    """Whether archived segments that say that they are hot, and are not, say so still: see `SeenTwice`."""
    hot = {each.segment.lssn for each in facts.segments if each.segment is not None}
    doubtful = [each for each in facts.cold if each.cold.is_hot and each.cold.lssn not in hot]
    return all([await is_unchanged(store, paths, each) for each in doubtful])


async def _stream_facts(namespace: OpenNamespace, paths: StreamPaths) -> StreamFacts:
    store = namespace.store
    names = sorted(await _names(store, paths.segments))
    segments = await in_parts(names, partial(_segment_facts, store, paths))
    problems: list[str] = []
    allocated: LedgerId | None = None
    try:
        allocated = decode_allocation((await store.get(paths.allocation)).data)
    except NoSuchNode:
        pass  # It was deleted meanwhile, as is its owner's right, or never had one.
    except DamagedMetadata as error:
        problems.append(f"{paths.allocation}: {error}")
    staged = await _beside(store, paths.staged, decode_staged, problems)
    cold = await _cold(store, paths, problems)
    left = {each.cold.ledger_left: paths.cold_segment(each.name) for each in cold}
    also = {ledger: path for ledger, path in left.items() if ledger is not None}
    await _beside(store, paths.sinks, decode_sink, problems)
    owner = await lock_holder(store, paths.lock)
    found = tuple(each for each in segments if each.segment is not None or each.problem is not None)
    return StreamFacts(namespace.uri, paths.stream, found, allocated, owner, also, tuple(problems), cold, staged)


async def _cold(store: MetadataStore, paths: StreamPaths, problems: list[str]) -> tuple[StoredCold, ...]:
    async def read(name: str) -> StoredCold | None:
        try:
            return await read_cold(store, paths, name)
        except NoSuchNode:
            return None  # Purged since.
        except DamagedMetadata as error:
            problems.append(str(error))
            return None

    found = await in_parts(sorted(await _names(store, paths.cold)), read)
    return tuple(each for each in found if each is not None)


async def _beside(
    store: MetadataStore, folder: str, decode: Callable[[bytes], T], problems: list[str]
) -> tuple[T, ...]:
    """What the nodes of this folder say. Those that cannot be read are problems."""
    found: list[T] = []
    for name in await _names(store, folder):
        path = join(folder, name)
        try:
            found.append(decode((await store.get(path)).data))
        except NoSuchNode:
            continue
        except DamagedMetadata as error:
            problems.append(f"{path}: {error}")
    return tuple(found)


async def _names(store: MetadataStore, folder: str) -> tuple[str, ...]:
    try:
        return (await store.children(folder)).names
    except NoSuchNode:
        return ()


async def _segment_facts(store: MetadataStore, paths: StreamPaths, name: str) -> SegmentFacts:
    try:
        return SegmentFacts(name, decode_segment((await store.get(paths.segment(name))).data))
    except NoSuchNode:
        return SegmentFacts(name, None)  # Completed or purged since: it is under another name, or gone.
    except DamagedMetadata as error:
        return SegmentFacts(name, None, str(error))


async def in_parts(items: Sequence[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """The results of work on each of these, some at a time."""
    found: list[R] = []
    for place in range(0, len(items), _AT_ONCE_MAX):
        found += await asyncio.gather(*map(work, items[place : place + _AT_ONCE_MAX]))
    return found
