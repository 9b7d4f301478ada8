"""The metadata tree in etcd: a transaction for every write, a lease for the session, one stream for all watches.

    _etcd_keys          paths and keys; listing one level of the tree        sans-IO
    _etcd_requirements  what must hold for a write, and what its failure means   sans-IO
    _etcd_txn           operations → one etcd transaction                    sans-IO
    _etcd_errors        gRPC's errors → ours
    _etcd_rpc           calls and streams to whichever server answers
    _etcd_session       the lease and its renewal
    _etcd_watch         the watch stream

The layout is that of Apache BookKeeper's own etcd driver: a node's key is its path. A version is the key's modification
revision, which grows across the whole store, so no version ever comes back. etcd keeps no times.

It speaks to etcd 3.4 and later, as Apache's driver without TLS and without authentication.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from quire.errors import DamagedMetadata, InvariantBroken, NodeExists, SessionExpired
from quire.metadata.driver import (
    Children,
    Create,
    Driver,
    Node,
    Op,
    SessionEvent,
    SessionId,
    Stat,
    Target,
    Version,
    Written,
)
from quire.metadata.drivers._etcd_errors import Compacted, unavailable
from quire.metadata.drivers._etcd_keys import ROOT_STAT, ChildScan, counter_key, key_of, stat_of
from quire.metadata.drivers._etcd_requirements import CounterMoved, SessionKey, SessionMoved
from quire.metadata.drivers._etcd_rpc import RANGE, TXN, EtcdClient
from quire.metadata.drivers._etcd_session import EtcdSession
from quire.metadata.drivers._etcd_txn import Plan, plan, plan_sequential
from quire.metadata.drivers._etcd_watch import EtcdWatches
from quire.metadata.drivers.etcd_pb import etcd_pb2 as pb
from quire.metadata.paths import ROOT, parent_of
from quire.metadata.settings import StoreSettings
from quire.metadata.uri import MetadataUri
from quire.runtime import Runtime

_RACE_DELAY_S: Final = 0.002  # Whoever lost the race for a number twice rests this long, then twice as long, …


async def open_driver(uri: MetadataUri, settings: StoreSettings, runtime: Runtime) -> Driver:
    """Connect to the etcd servers of `uri` and begin a session. Raises `MetadataUnavailable` if none answers."""
    client = EtcdClient(uri.servers, operation_timeout_s=settings.operation_timeout_s, runtime=runtime)
    session = EtcdSession(client, timeout_s=settings.session_timeout_s)
    try:
        await session.begin(deadline=client.deadline())
    except BaseException:
        await client.aclose()
        raise
    return EtcdDriver(client, session)


class EtcdDriver:
    """One client of an etcd cluster. `open_driver` makes it."""

    def __init__(self, client: EtcdClient, session: EtcdSession) -> None:
        self._client = client
        self._session = session
        self._watches = EtcdWatches(client)
        self._failure: BaseException | None = None
        self._sequences: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks = [
            self._start(session.run(), name="etcd session"),
            self._start(self._watches.run(), name="etcd watches"),
        ]

    @property
    def session(self) -> SessionId:
        return self._session.id

    def listen(self, callback: Callable[[SessionEvent], None]) -> None:
        self._session.listen(callback)

    # --- Reading

    async def get(self, path: str) -> Node | None:
        stored = await self._read(path, keys_only=False)
        if stored is None:
            return Node(b"", ROOT_STAT) if path == ROOT else None
        return Node(stored.value, stat_of(stored))

    async def stat(self, path: str) -> Stat | None:
        stored = await self._read(path, keys_only=True)
        if stored is None:
            return ROOT_STAT if path == ROOT else None
        return stat_of(stored)

    async def _read(self, path: str, *, keys_only: bool) -> pb.KeyValue | None:
        self._check_tasks()
        return await self._find(key_of(path), keys_only=keys_only, deadline=self._client.deadline())

    async def _find(self, key: bytes, *, keys_only: bool = False, deadline: float) -> pb.KeyValue | None:
        request = pb.RangeRequest(key=key, keys_only=keys_only)
        answer = await self._client.call(RANGE, request, deadline=deadline, repeatable=True)
        return answer.kvs[0] if answer.kvs else None

    async def children(self, path: str) -> Children | None:
        self._check_tasks()
        deadline = self._client.deadline()
        while True:
            try:
                return await self._list(path, deadline)
            except Compacted as error:
                # The revision that the pages were to agree on is gone: they would not fit together. Start over.
                if self._client.left(deadline) == 0:
                    raise unavailable(
                        self._client.servers, f"{path!r} could not be listed before its revision was compacted"
                    ) from error

    async def _list(self, path: str, deadline: float) -> Children | None:
        """All pages at one revision, that of the first; the node itself is looked up together with that one."""
        scan = ChildScan(path)
        first = pb.TxnRequest(
            success=[
                pb.RequestOp(request_range=pb.RangeRequest(key=key_of(path), keys_only=True)),
                pb.RequestOp(request_range=_page(scan, revision=0)),
            ]
        )
        answer = await self._client.call(TXN, first, deadline=deadline, repeatable=True)
        node, page = (done.response_range for done in answer.responses)
        if not node.kvs and path != ROOT:
            return None
        revision = answer.header.revision
        scan.on_page([stored.key for stored in page.kvs], more=page.more)
        while not scan.finished:
            page = await self._client.call(RANGE, _page(scan, revision), deadline=deadline, repeatable=True)
            scan.on_page([stored.key for stored in page.kvs], more=page.more)
        return Children(tuple(scan.names), Version(revision))

    async def sync(self) -> None:
        """Nothing to do: every read here is linearizable, none is served from what one member happens to know."""
        self._check_tasks()

    async def settle(self) -> None:
        self._check_tasks()
        await self._session.settle(deadline=self._client.deadline())

    # --- Writing

    async def commit(self, ops: Sequence[Op]) -> list[Written | None]:
        self._check_tasks()
        deadline = self._client.deadline()
        session = self._session.key  # A write belongs to the session it was decided under, also if it has to wait.
        try:
            match ops:
                case [Create(sequential=True) as op]:
                    return [await self._create_sequential(op, session, deadline)]
                case _:
                    return await self._transact(partial(plan, ops), session, deadline)
        except SessionExpired:
            await self._session.on_lost(session.lease, deadline=deadline)
            raise

    async def _transact(
        self, prepare: Callable[[SessionKey], Plan], session: SessionKey, deadline: float
    ) -> list[Written | None]:
        while True:
            try:
                return await self._transact_once(prepare(session), deadline)
            except SessionMoved as moved:  # Another call has settled a doubt meanwhile. This write was refused for it.
                session.on_seen(moved.revision)

    async def _transact_once(self, prepared: Plan, deadline: float) -> list[Written | None]:
        look = prepared.look
        if look is not None:
            prepared.on_look(await self._client.call(TXN, look, deadline=deadline, repeatable=True))
        request, repeatable = prepared.request, not prepared.writes
        return prepared.on_answer(await self._client.call(TXN, request, deadline=deadline, repeatable=repeatable))

    async def _create_sequential(self, op: Create, session: SessionKey, deadline: float) -> Written | None:
        """Take the parent's next number and create the node, in one transaction; again if another client was faster."""
        parent = parent_of(op.path)
        turn = self._sequences.setdefault(parent, asyncio.Lock())  # Creates of this client need not race each other.
        failures = 0
        try:
            async with asyncio.timeout(self._client.left(deadline)):
                await turn.acquire()
        except TimeoutError as error:
            raise unavailable(self._client.servers, f"too many sequential nodes wait for {parent!r}") from error
        try:
            counter = await self._find(counter_key(parent), deadline=deadline)
            number = _number(counter)
            while True:
                prepare = partial(plan_sequential, op, number=number, counter=counter)
                try:
                    (written,) = await self._transact(prepare, session, deadline)
                except CounterMoved as moved:
                    counter = moved.stored
                    if failures:  # Many race. Fewer at a time get on faster, and what was read before the rest is old.
                        await self._client.pause(failures, first_s=_RACE_DELAY_S)
                        counter = await self._find(counter_key(parent), deadline=deadline)
                    number = _number(counter)
                except NodeExists:
                    number += 1  # Somebody created a node of just this name by hand; the number is skipped.
                else:
                    return written
                failures += 1
        finally:
            turn.release()

    # --- Waiting

    async def watch(self, path: str, target: Target, notify: Callable[[], None]) -> Callable[[], None]:
        self._check_tasks()
        return await self._watches.add(path, target, notify)

    # --- Tasks, and the end

    def _start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        self._failure = task.exception() or InvariantBroken(f"the task {task.get_name()!r} ended")
        task.get_loop().call_exception_handler(
            {"message": f"{task.get_name()} failed; the store is of no use any more", "exception": self._failure}
        )

    def _check_tasks(self) -> None:
        """A session that nobody renews, or watches that nobody serves, must not go unnoticed."""
        if self._failure is not None:
            raise InvariantBroken("a background task of the etcd driver failed") from self._failure

    async def aclose(self) -> None:
        try:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            self._watches.close()
            await self._session.end()
        finally:
            await self._client.aclose()


def _page(scan: ChildScan, revision: int) -> pb.RangeRequest:
    return pb.RangeRequest(key=scan.start, range_end=scan.end, limit=scan.limit, revision=revision, keys_only=True)


def _number(counter: pb.KeyValue | None) -> int:
    if counter is None:
        return 0
    try:
        return int(counter.value)
    except ValueError as error:
        raise DamagedMetadata(f"the sequence counter {counter.key!r} holds {counter.value!r}") from error
