"""A session: one etcd lease that is renewed while this client lives, and replaced when it is gone.

The session's own key hangs on the lease, as its ephemeral nodes do; they vanish together, in one step. Every write
requires that key, hence no write of a dead session can slip in, however late it arrives. Nor can a write whose answer
was lost, once `settle` has moved the key: etcd keeps no order among the writes of one client, and may carry out one of
them long after the next.

Only etcd's word ends a session. A client that hears nothing knows nothing: etcd does not count time while it has no
leader. So silence is SUSPENDED, and EXPIRED is told once etcd has confirmed that the lease does not exist.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from quire.errors import QuireError, SessionExpired
from quire.metadata.driver import SessionEvent, SessionId
from quire.metadata.drivers._etcd_errors import unavailable
from quire.metadata.drivers._etcd_keys import session_key
from quire.metadata.drivers._etcd_requirements import SessionKey
from quire.metadata.drivers._etcd_rpc import LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, PUT, TXN, EtcdClient, Stream
from quire.metadata.drivers.etcd_pb import etcd_pb2 as pb

_RENEWALS_PER_TTL: Final = 3
_FAILURES_MAX: Final = 3  # More would make the rest between two attempts longer than a short session can bear.
_GOODBYE_S: Final = 2.0  # Closing does not wait longer: an unreachable server forgets the lease by itself.


class EtcdSession:
    """The present session of one store handle. `begin` first; then `run` keeps it alive, as a task of the caller's."""

    def __init__(self, client: EtcdClient, *, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self.key = SessionKey(lease=0, revision=0)
        self._renewal_s = 0.0
        self._lost = False  # The lease is gone, or soon will be: this session is not to be used any more.
        self._told_expired = False
        self._suspended = False
        self._failures = 0  # Since the store last answered.
        self._wake = asyncio.Event()  # Set when there is something to do before the next renewal is due.
        self._begun = asyncio.Event()
        self._listener: Callable[[SessionEvent], None] = _ignore

    @property
    def lease(self) -> int:
        return self.key.lease

    @property
    def id(self) -> SessionId:
        return SessionId(self.lease)

    def listen(self, callback: Callable[[SessionEvent], None]) -> None:
        self._listener = callback

    async def on_lost(self, lease: int, *, deadline: float) -> None:
        """A write was refused because the session of `lease` is over. Begin another, and wait for it until `deadline`.

        So whoever is told of the expiry by its own write can write again, and finds the new session's id.
        """
        if lease == self.lease:
            self._lost = True
            self._begun.clear()
            self._wake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._client.left(deadline)):
                await self._begun.wait()

    async def begin(self, *, deadline: float) -> None:
        """Get a lease and put the session's key on it."""
        wish = pb.LeaseGrantRequest(TTL=max(1, math.ceil(self._timeout_s)))
        # Repeating is harmless: a lease that was granted without our knowing expires on its own.
        granted = await self._client.call(LEASE_GRANT, wish, deadline=deadline, repeatable=True)
        proof = pb.PutRequest(key=session_key(granted.ID), lease=granted.ID)
        put = await self._client.call(PUT, proof, deadline=deadline, repeatable=True)
        self._renewal_s = granted.TTL / _RENEWALS_PER_TTL  # etcd may have chosen a longer time than asked for.
        self.key = SessionKey(granted.ID, put.header.revision)
        self._lost, self._told_expired = False, False
        self._begun.set()

    async def settle(self, *, deadline: float) -> None:
        """After this, no write that was sent before in this session is carried out any more.

        Those that are under way, and find the key moved, are sent again by their callers. Where the key is gone, so is
        the session, and what is late with it.
        """
        key = self.key
        key.on_moved(await self._client.call(TXN, key.move(), deadline=deadline, repeatable=True))

    async def run(self) -> None:
        """Keep a session alive for ever, and tell what happens to it."""
        while True:
            try:
                if not self._lost:
                    await self._renew_until_gone()
                    self._lost = True
                await self._replace()
            except QuireError:  # Not the end of anything: the servers may come back, or let us in again.
                self._tell_suspended(True)
                await self._client.pause(self._failures)
                self._failures = min(self._failures + 1, _FAILURES_MAX)

    async def _renew_until_gone(self) -> None:
        """Renew the lease as long as etcd has it. Raises when no server answers."""
        stream = await self._client.open_stream(
            LEASE_KEEP_ALIVE, deadline=self._client.deadline(), on_end=self._wake.set
        )
        try:
            while not self._lost and await self._renew(stream):
                self._failures = 0
                self._tell_suspended(False)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._renewal_s):
                        await self._wake.wait()  # A broken stream is noticed here, before the next renewal is due.
                self._wake.clear()
        finally:
            stream.close()

    async def _renew(self, stream: Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]) -> bool:
        """Whether the lease still exists."""
        try:
            async with asyncio.timeout(self._renewal_s):
                await stream.send(pb.LeaseKeepAliveRequest(ID=self.lease))
                answer = await stream.receive()
        except TimeoutError as error:
            stream.suspect_server()
            silence = f"no answer to a session's renewal within {self._renewal_s:.1f} s"
            raise unavailable(self._client.servers, silence) from error
        return answer.TTL > 0

    async def _replace(self) -> None:
        if not self._told_expired:
            await self._revoke(deadline=self._client.deadline())
            self._told_expired = True
            self._listener(SessionEvent.EXPIRED)
        await self.begin(deadline=self._client.deadline())
        self._suspended, self._failures = False, 0
        self._listener(SessionEvent.RESUMED)

    async def _revoke(self, *, deadline: float) -> None:
        """Make sure that the lease, and all that hangs on it, is gone. Somebody may have deleted the key alone."""
        with suppress(SessionExpired):
            farewell = pb.LeaseRevokeRequest(ID=self.lease)
            await self._client.call(LEASE_REVOKE, farewell, deadline=deadline, repeatable=True)

    def _tell_suspended(self, suspended: bool) -> None:
        if suspended != self._suspended:
            self._suspended = suspended
            self._listener(SessionEvent.SUSPENDED if suspended else SessionEvent.RESUMED)

    async def end(self) -> None:
        """Give the lease back, so that the ephemeral nodes go at once. Call it when `run` has ended."""
        with suppress(QuireError):
            await self._revoke(deadline=self._client.deadline(within_s=_GOODBYE_S))


def _ignore(_: SessionEvent) -> None:
    """Nobody listens yet."""
