"""Keeping up with who is there: one proxy at a time is asked for all others, and followed as long as it speaks.

Invariant: whoever is followed and falls silent, or says that it stops, is followed by another one. While nobody answers
what was known last counts.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument, NotAuthenticated, ProxyUnreachable, QuireError, RequestDenied
from quire.protocol.ownership_cache import OwnershipCache
from quire.proxy.client.failures import address_of
from quire.proxy.client.hosts import Hosts
from quire.proxy.client.settings import ProxyClientSettings
from quire.rpc.serving.methods import HANDSHAKE, WATCH_OWNERSHIP
from quire.rpc.serving.transport import Transport
from quire.runtime import Runtime
from quire.telemetry.events import logger

_log = logger("proxy")
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
_POLL_S: Final = 1.0
_FINAL: Final = (InvalidArgument, NotAuthenticated, RequestDenied)
"""Another namespace, or a token that does not count: to ask again changes nothing."""


class Watching:
    """Asks and follows proxies while its block runs."""

    def __init__(
        self,
        runtime: Runtime,
        transport: Transport,
        hosts: Hosts,
        owners: OwnershipCache,
        settings: ProxyClientSettings,
        *,
        client_id: str,
    ) -> None:
        self._client_id = client_id
        self._runtime, self._transport, self._settings = runtime, transport, settings
        self._hosts, self._owners = hosts, owners
        self._has_heard = asyncio.Event()
        self._problem: QuireError | None = None
        self._followed: str | None = None
        self.on_owner: Callable[[str], None] = lambda stream: None
        """Called with each stream of which an owner was heard."""

    @property
    def followed(self) -> str | None:
        """The proxy that is followed now."""
        return self._followed

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Begins when somebody has said who is there. Raises `ProxyUnreachable` if nobody does in time; at once
        `InvalidArgument` if the proxies serve another namespace, and `NotAuthenticated` or `RequestDenied` if they do
        not take us."""
        task = asyncio.create_task(self._run(), name="follow proxies")
        try:
            try:
                async with asyncio.timeout(self._settings.connect_timeout_s):
                    await self._has_heard.wait()
            except TimeoutError as error:
                raise self._nobody() from (self._problem or error)
            if isinstance(self._problem, _FINAL):
                raise self._problem
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _nobody(self) -> ProxyUnreachable:
        asked = ", ".join(self._hosts.anybody())
        return ProxyUnreachable(
            f"none of the proxies {asked} answered within {self._settings.connect_timeout_s:g} s: {self._problem}",
            hint="Start one with `quire write-proxy run`, and check the addresses in the URI.",
        )

    # --- One after the other

    async def _run(self) -> None:
        pause_s, rng = _PAUSE_S, self._runtime.rng
        while True:
            heard = False
            for address in self._hosts.anybody(self._client_id):  # So that clients spread over proxies.
                heard = await self._follow(address)
                if heard:
                    break  # It was followed for a while: begin with those that it named last.
            pause_s = _PAUSE_S if heard else min(_PAUSE_S_MAX, 2 * pause_s)
            await self._runtime.clock.sleep(pause_s * (0.5 + rng.random() / 2))

    async def _follow(self, address: str) -> bool:
        """Whether it answered at all."""
        channel, heard = self._transport.channel(address), False
        request = pb.HandshakeRequest(namespace=self._hosts.namespace, want_ownerships=True)
        try:
            answer = await channel.call(HANDSHAKE, request, timeout_s=self._settings.handshake_timeout_s)
            heard = True
            self._on_handshake(address, answer)
            if answer.status == pb.DOWN:
                return False
            self._followed = address
            if answer.role == pb.READ_PROXY:
                await self._runtime.clock.sleep(
                    _POLL_S
                )  # It owns nothing, and so has nothing to tell but who is there.
                return True
            watch = pb.WatchOwnershipRequest(namespace=self._hosts.namespace)
            async with channel.stream(WATCH_OWNERSHIP, watch) as changes:
                async for change in changes:
                    self._on_change(address, change)
        except QuireError as error:
            self._on_problem(address, error, heard=heard)
        finally:
            self._followed = None
        return heard

    def _on_problem(self, address: str, error: QuireError, *, heard: bool) -> None:
        self._problem = error
        if isinstance(error, _FINAL) and not self._has_heard.is_set():
            self._has_heard.set()
        elif not heard:
            self._hosts.on_unreachable(address)
        _log.debug("proxy.unheard", proxy=address, problem=str(error))

    # --- What is heard

    def _on_handshake(self, address: str, answer: pb.HandshakeResponse) -> None:
        self._hosts.on_answer(address)
        self._hosts.on_members(answer.members)
        self._on_owned(address, answer.owned)
        self._problem = None
        self._has_heard.set()

    def _on_change(self, address: str, change: pb.OwnershipChange) -> None:
        if change.members_changed:
            self._hosts.on_members(change.members)
        self._on_owned(address, change.streams)

    def _on_owned(self, address: str, owned: Iterable[pb.Ownership]) -> None:
        for each in owned:
            if not each.HasField("owner"):
                self._owners.drop(each.stream, expected=address)
            elif self._owners.update(each.stream, address_of(each.owner), epoch=each.epoch):
                self.on_owner(each.stream)
