"""A namespace in a simulation: metadata in memory, any number of clients on hosts of their own, bookies if need be.

Deleting a ledger is a matter of metadata, so ledgers are nothing else where streams are laid by hand.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from quire.codec.stream_metadata.segment import Completion, Segment, encode_segment, segment_name
from quire.codec.stream_metadata.tree import encode_allocation
from quire.metadata import ANY_VERSION, Cluster, MetadataStore, StoreSettings
from quire.metadata.driver import Op, SessionId, Written
from quire.stream.binding import bind_namespace
from quire.stream.namespace import Namespace, open_namespace
from quire.stream.settings import StreamSettings
from quire.testing import SimBookie, SimTree, Simulation, sim_cluster, sim_tree, simulate
from quire.types import DLSN, BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState, Lssn, Quorum, SlotId

URI = "distributedlog+memory:simulated/messaging/ns"
ROOT = "/messaging/ns"
CLIENT = "client"
SETTINGS = StreamSettings(call_timeout_s=20.0, lock_timeout_s=5.0)
STORE = StoreSettings(operation_timeout_s=3.0, session_timeout_s=4.0)
# Sealed: no bookie runs in this world.
_METADATA = LedgerMetadata(
    Quorum(1, 1, 1), (Fragment(EntryId(0), (BookieId("bk1:3181"),)),), LedgerState.CLOSED, EntryId(0), 1
)


@dataclass
class World:
    sim: Simulation
    cluster: Cluster
    stack: AsyncExitStack
    namespace: Namespace  # Of the host `CLIENT`, whose answers can be lost.

    @property
    def tree(self) -> SimTree:
        return sim_tree(self.cluster)

    @property
    def store(self) -> MetadataStore:
        """Of nobody in particular: what it writes and reads always succeeds."""
        return self.cluster.store

    @property
    def now_s(self) -> float:
        return self.sim.loop.time()

    async def pass_time(self, seconds: float) -> None:
        """Let virtual time go by."""
        await asyncio.sleep(seconds)

    async def open(self, host: str, uri: str = URI, **options: Any) -> Namespace:
        options = {"settings": SETTINGS, "store_settings": STORE, "client_id": host, **options}
        opening = open_namespace(uri, runtime=self.sim.host(host).runtime, **options)
        return await self.sim.host(host).spawn(self.stack.enter_async_context(opening))

    async def nodes(self, path: str = ROOT) -> dict[str, bytes]:
        """All nodes below `path`, by their paths behind it, without identities of streams: those are random."""
        found: dict[str, bytes] = {}
        waiting = [path]
        while waiting:
            at = waiting.pop()
            if "/identity-" in at:
                continue
            found[at.removeprefix(path)] = (await self.store.get(at)).data
            waiting += [f"{at}/{name}" for name in (await self.store.children(at)).names]
        del found[""]
        return found

    async def ledgers(self) -> set[LedgerId]:
        return {ledger async for ledger in self.cluster.ledgers.scan()}

    async def fewer_ledgers(self, than: int) -> None:
        """Return as soon as some are gone."""
        while len(await self.ledgers()) >= than:  # noqa: ASYNC110 - whatever changes, nobody would tell
            await asyncio.sleep(0)

    async def new_ledger(self) -> LedgerId:
        return (await self.cluster.ledgers.create(_METADATA)).ledger_id

    async def fill(self, stream: str, *, completed: int, in_progress: int = 0, allocated: bool = False) -> None:
        """Give a stream segments, and perhaps a ledger that is in none of them."""
        paths = self.namespace.context.paths(stream)
        for number in range(1, completed + in_progress + 1):
            lssn = Lssn(number)
            segment = Segment.begun(lssn, await self.new_ledger(), first_txid=number)
            if number <= completed:
                last = DLSN(lssn, EntryId(0), SlotId(0))
                segment = segment.completed(
                    Completion(number, 1_500_000_000_000, 1, last), start_sequence_id=number - 1
                )
            await self.store.create(paths.segment(segment_name(segment)), encode_segment(segment))
        await self.store.set(paths.segments, b"%d" % (completed + in_progress), expected=ANY_VERSION)
        if allocated:
            data = encode_allocation(await self.new_ledger())
            await self.store.set(paths.allocation, data, expected=ANY_VERSION)

    def lose_answer(self, number: int) -> Callable[[], int]:
        """Lose the answer to the client's write of this number, counted from 0. Returns how many writes there were."""
        tree, count, commit = self.tree, 0, self.tree.commit

        def counted(ops: Sequence[Op], session: SessionId, now_ms: int) -> list[Written | None]:
            nonlocal count
            if tree._host_of[tree._clients[session]] == CLIENT:
                if count == number:
                    tree.lose_answers(CLIENT, 1)
                count += 1
            return commit(ops, session, now_ms)

        tree.commit = counted  # type: ignore[method-assign]
        return lambda: count


def in_namespace(check: Callable[[World], Awaitable[None]], *, bookies: int = 0, seeds: int = 2) -> None:
    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            started = [SimBookie(sim, f"b{number}", cluster) for number in range(bookies)]
            for bookie in started:
                await bookie.start()
            async with AsyncExitStack() as stack:
                await bind_namespace(URI, runtime=sim.host("admin").runtime)
                world = World(sim, cluster, stack, namespace=None)  # type: ignore[arg-type]
                world.namespace = await world.open(CLIENT)
                await check(world)
            for bookie in started:
                await bookie.stop()

    for seed in range(seeds):
        simulate(seed, main, time_limit_s=900)
