"""Metadata in memory, with what can go wrong between it and its clients. Clients are known by their hosts' names.

    async with sim_cluster(sim) as cluster:
        tree = sim_tree(cluster)
        tree.lose_answers("writer", 1)     # its next write happens, and it is told that nobody knows
        tree.stall("writer", 2.0)          # its calls wait; beyond its session timeout the session is over
        tree.expire_host("b1")             # its session is over now
        tree.abandon("b1")                 # its host dies: the session stays behind until its time is over

Only clients that run in tasks of `SimHost.spawn` have a name; all others are out of reach for faults.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NoReturn

from quire.errors import InvariantBroken, MetadataOutcomeUnknown, MetadataUnavailable
from quire.metadata import Cluster
from quire.metadata.driver import Op, SessionId, Written
from quire.metadata.drivers import memory
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.testing.simulation import current_host_name

_NAMELESS: Final = ""


class SimTree(MemoryTree):
    """A `MemoryTree` for simulations."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._host_of: dict[MemoryDriver, str] = {}
        self._to_lose: dict[str, int] = {}
        self._abandoned: set[SessionId] = set()
        memory._shared[name] = self  # In place of the plain tree that the first handle would make.

    # --- Faults

    def lose_answers(self, host: str, count: int) -> None:
        """Carry out the next `count` writes of a host, and lose the answers."""
        self._to_lose[host] = self._to_lose.get(host, 0) + count

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
        for session in self._sessions(host):
            self._abandoned.add(session)
            client = self._clients[session]
            for watched in client._watches:
                self.remove_watch(client, *watched)
            client._tree = _Silence()
            loop.call_later(client._settings.session_timeout_s, self._bury, session)

    def repair(self) -> None:
        """Let everybody reach the tree again, and lose no more answers."""
        self._to_lose.clear()
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
        written = super().commit(ops, session, now_ms)
        host = self._host_of[self._clients[session]]
        if self._to_lose.get(host, 0) > 0:
            self._to_lose[host] -= 1
            raise MetadataOutcomeUnknown("the answer of the metadata tree was lost (simulated)")
        return written


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
