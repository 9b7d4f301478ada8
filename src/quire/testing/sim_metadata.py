"""Metadata in memory, with what can go wrong between it and its clients. Clients are known by their hosts' names.

    async with sim_cluster(sim) as cluster:
        tree = sim_tree(cluster)
        tree.lose_answers("writer", 1)     # its next write happens, and it is told that nobody knows
        tree.delay_writes("writer", 1, 0.5)    # the same, and the write happens half a second later, or never
        tree.stall("writer", 2.0)          # its calls wait; beyond its session timeout the session is over
        tree.expire_host("b1")             # its session is over now
        tree.abandon("b1")                 # its host dies: the session stays behind until its time is over

Only clients that run in tasks of `SimHost.spawn` have a name; all others are out of reach for faults.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from quire.errors import InvariantBroken, MetadataOutcomeUnknown, MetadataUnavailable, QuireError
from quire.metadata import Cluster
from quire.metadata.driver import Op, SessionId, Written
from quire.metadata.drivers import memory
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.testing.simulation import current_host_name
from quire.values import dataclass

_NAMELESS: Final = ""


@dataclass(frozen=True, slots=True)
class _Delay:
    seconds: float
    is_first: bool


@dataclass(frozen=True, slots=True)
class _Late:
    """A write that is under way, and whose client was told that nobody knows."""

    land: Callable[[], None]
    timer: asyncio.TimerHandle
    is_first: bool


class SimTree(MemoryTree):
    """A `MemoryTree` for simulations."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._host_of: dict[MemoryDriver, str] = {}
        self._to_lose: dict[str, int] = {}
        self._to_delay: dict[str, list[_Delay]] = {}
        self._late: dict[SessionId, list[_Late]] = {}
        self.late: Counter[str] = Counter()  # What became of writes that came late.
        self._abandoned: set[SessionId] = set()
        memory._shared[name] = self  # In place of the plain tree that the first handle would make.

    # --- Faults

    def lose_answers(self, host: str, count: int) -> None:
        """Carry out the next `count` writes of a host, and lose the answers."""
        self._to_lose[host] = self._to_lose.get(host, 0) + count

    def delay_writes(self, host: str, count: int, seconds: float, *, is_first: bool = False) -> None:
        """Tell a host that nobody knows of its next `count` writes, and carry them out so much later, if nothing
        stands against them then. Before that the host may have them settled: then they happen, `is_first`, or never.
        """
        self._to_delay.setdefault(host, []).extend([_Delay(seconds, is_first)] * count)

    def stall(self, host: str, seconds: float) -> None:
        """Cut a host's clients off for a while."""
        for session in self._sessions(host):
            self.disconnect(session)
            asyncio.get_running_loop().call_later(seconds, self._end_stall, session)

    def expire_host(self, host: str) -> None:
        """End the sessions of a host as if it had been silent for too long."""
        for session in self._sessions(host):
            self.expire(session)

    def abandon(self, host: str) -> None:
        """A host is about to crash: nothing of it reaches the tree any more, and its sessions end when they time out.

        Call it right before `SimHost.crash`, or the dying tasks would still say goodbye.
        """
        loop = asyncio.get_running_loop()
        self._to_delay.pop(host, None)  # What was planned for this life of the host; writes under way still come.
        for session in self._sessions(host):
            self._abandoned.add(session)
            client = self._clients[session]
            for watched in client._watches:
                self.remove_watch(client, *watched)
            client._tree = _Silence()
            loop.call_later(client._settings.session_timeout_s, self._bury, session)

    def repair(self) -> None:
        """Let everybody reach the tree again, and lose no more answers. What is under way still comes."""
        self._to_lose.clear()
        self._to_delay.clear()
        for session in [session for session in self._clients if session not in self._abandoned]:
            self.reconnect(session)

    def _end_stall(self, session: SessionId) -> None:
        if session in self._clients and session not in self._abandoned:
            self.reconnect(session)

    def _bury(self, session: SessionId) -> None:
        self.end_session(session)
        self.forget(session)

    def _sessions(self, host: str) -> list[SessionId]:
        return [
            session
            for session, client in self._clients.items()
            if self._host_of[client] == host and session not in self._abandoned
        ]

    # --- What a client asks for

    def begin_session(self, client: MemoryDriver) -> SessionId:
        self._host_of.setdefault(client, current_host_name() or _NAMELESS)
        return super().begin_session(client)

    def commit(self, ops: Sequence[Op], session: SessionId, now_ms: int) -> list[Written | None]:
        host = self._host_of[self._clients[session]] if self.is_alive(session) else _NAMELESS
        if delays := self._to_delay.get(host):
            self._delay(delays.pop(0), list(ops), session, now_ms)
            raise MetadataOutcomeUnknown("the metadata tree has not carried out this write yet (simulated)")
        written = self.carry_out(ops, session, now_ms)
        if self._to_lose.get(host, 0) > 0:
            self._to_lose[host] -= 1
            raise MetadataOutcomeUnknown("the answer of the metadata tree was lost (simulated)")
        return written

    def carry_out(self, ops: Sequence[Op], session: SessionId, now_ms: int) -> list[Written | None]:
        """What `commit` does if nothing goes wrong."""
        return super().commit(ops, session, now_ms)

    # --- Writes that come late

    def _delay(self, delay: _Delay, ops: list[Op], session: SessionId, now_ms: int) -> None:
        def land() -> None:
            late.remove(write)
            try:
                self.carry_out(ops, session, now_ms)
                self.late["late and done"] += 1
            except QuireError:  # Something stands against it, or the session is over.
                self.late["late and refused"] += 1

        late = self._late.setdefault(session, [])
        timer = asyncio.get_running_loop().call_later(delay.seconds, land)
        write = _Late(land, timer, delay.is_first)
        late.append(write)

    def settle(self, session: SessionId) -> None:
        for write in list(self._late.get(session, ())):
            write.timer.cancel()
            if write.is_first:
                write.land()
            else:
                self.late["late and void"] += 1
        self._late.pop(session, None)


class _Silence(MemoryTree):
    """What a dead host's clients reach instead of the tree. Their tasks still run to their ends."""

    def find(self, path: str) -> NoReturn:
        raise MetadataUnavailable("the simulated host has crashed since")

    def commit(self, ops: Sequence[Op], session: SessionId, now_ms: int) -> NoReturn:
        raise MetadataUnavailable("the simulated host has crashed since")


def sim_tree(cluster: Cluster) -> SimTree:
    """The tree behind a cluster of `sim_cluster`."""
    tree = memory._shared.get(cluster.uri.location)
    if not isinstance(tree, SimTree):
        raise InvariantBroken(f"{cluster.uri.text!r} is not the metadata of a simulation")
    return tree
