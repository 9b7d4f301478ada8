"""Single calls: to whoever owns a stream, or to anybody who can answer, until one does or time is up.

Invariant: what may have happened is sent again only if the call is one that does no harm twice.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from quire.errors import NotOwner, ProxyOutcomeUnknown, ProxyUnreachable, QuireError, StreamUnavailable
from quire.protocol.ownership_cache import OwnershipCache
from quire.protocol.redirects import DROPS_OWNER, Advice, Failure, GiveUp, Route, Send
from quire.proxy.client.failures import epoch_of, failure_of
from quire.proxy.client.hosts import Hosts
from quire.proxy.client.settings import ProxyClientSettings
from quire.rpc.serving.methods import Method
from quire.rpc.serving.transport import Transport
from quire.runtime import Runtime


class Requests:
    """The calls of one client."""

    def __init__(
        self,
        runtime: Runtime,
        transport: Transport,
        hosts: Hosts,
        owners: OwnershipCache,
        settings: ProxyClientSettings,
    ) -> None:
        self._runtime, self._transport, self._hosts, self._settings = runtime, transport, hosts, settings
        self.owners = owners
        """Of streams, as far as they are known."""

    async def to_owner(
        self,
        method: Method,
        request: Message,
        stream: str,
        *,
        timeout_s: float,
        attempt_timeout_s: float | None = None,
        may_repeat: bool = True,
    ) -> Any:
        """Call the owner of a stream, wherever it is by now. One proxy may take `attempt_timeout_s` to answer.

        Raises what the call raises; `StreamUnavailable`, `ProxyUnreachable` or `ProxyOutcomeUnknown` when time is up.
        """
        return await self._send(
            method,
            request,
            lambda: self._hosts.writers_of(stream),
            stream=stream,
            timeout_s=timeout_s,
            attempt_timeout_s=attempt_timeout_s,
            may_repeat=may_repeat,
        )

    async def to_writer(
        self, method: Method, request: Message, stream: str, *, timeout_s: float, may_repeat: bool = True
    ) -> Any:
        """Call a proxy that need not own the stream; a read proxy if there is no other."""
        return await self._send(
            method,
            request,
            lambda: self._hosts.writers_of(stream) or self._hosts.readers_of(stream),
            timeout_s=timeout_s,
            may_repeat=may_repeat,
        )

    async def to_reader(self, method: Method, request: Message, stream: str, *, timeout_s: float) -> Any:
        """Call the read proxy of a stream. Fine to do twice."""
        return await self._send(
            method, request, lambda: self._hosts.readers_of(stream), timeout_s=timeout_s, may_repeat=True
        )

    async def _send(
        self,
        method: Method,
        request: Message,
        candidates: Callable[[], list[str]],
        *,
        timeout_s: float,
        may_repeat: bool,
        stream: str | None = None,
        attempt_timeout_s: float | None = None,
    ) -> Any:
        """With a `stream` only its owner answers."""
        clock = self._runtime.clock
        route = self.route(timeout_s, may_repeat=may_repeat)
        error: QuireError | None = None
        while (host := await self.next_proxy(route, candidates, stream=stream)) is not None:
            limit_s = min(attempt_timeout_s or self._settings.attempt_timeout_s, route.deadline_s - clock.monotonic())
            try:
                answer = await self._transport.channel(host).call(
                    method, request, timeout_s=limit_s, attempt=route.attempts, tried=sorted(route.unreachable)
                )
            except QuireError as raised:
                error = raised
                if not self.on_failure(route, host, error, stream=stream):
                    raise
            else:
                self._hosts.on_answer(host)
                if stream is not None:
                    self.owners.update(stream, host, expected=self.owners.owner(stream))
                return answer
        raise self._given_up(method, route, error, timeout_s)

    # --- One step after the other, for calls that are more than one request

    def route(self, timeout_s: float, *, may_repeat: bool = True) -> Route:
        """The way of a request that begins now."""
        deadline_s = self._runtime.clock.monotonic() + timeout_s
        return Route(self._settings.retries, deadline_s=deadline_s, may_repeat=may_repeat)

    async def next_proxy(
        self, route: Route, candidates: Callable[[], list[str]], *, stream: str | None = None
    ) -> str | None:
        """Whom to ask next, when it is time; None if there is nobody, or no time, left."""
        clock, rng = self._runtime.clock, self._runtime.rng
        while True:
            owner = None if stream is None else self.owners.owner(stream)
            now_s = clock.monotonic()
            step = route.next(now_s, owner=owner, candidates=candidates(), draw=rng.random())
            if isinstance(step, Send):
                return step.host
            if isinstance(step, GiveUp):
                return None
            await clock.sleep(step.until_s - now_s)

    def on_failure(
        self, route: Route, host: str, error: QuireError, *, stream: str | None = None, any_will_do: bool = False
    ) -> bool:
        """Whether another attempt makes sense. With `any_will_do` nobody has to be waited for."""
        failure = self.learned(host, error, stream=stream)
        if any_will_do and failure.advice is Advice.HERE:
            failure = replace(failure, advice=Advice.OTHER_PROXY)
        return route.on_failure(host, failure, self._runtime.clock.monotonic(), draw=self._runtime.rng.random())

    def learned(self, host: str, error: QuireError, *, stream: str | None) -> Failure:
        """What a failure says, after everything else that it says of hosts and owners was noted."""
        failure = failure_of(error)
        if failure.advice is Advice.HOST_GONE:
            self._hosts.on_unreachable(host)
            self.owners.drop_owner(host)
        elif failure.answered:
            self._hosts.on_answer(host)
        if stream is None:
            return failure
        if failure.advice in DROPS_OWNER:
            self.owners.drop(stream, expected=host)
        elif failure.advice is Advice.OWNER:
            if failure.owner is None or failure.owner == host:
                self.owners.drop(stream, expected=host)
                return replace(failure, owner=None)
            if self._hosts.is_dark(failure.owner):
                self.owners.drop(stream, expected=host)
                return replace(failure, owner_live=False)  # Not for us: whoever says so has not noticed yet.
            if not self.owners.update(stream, failure.owner, epoch=epoch_of(error), expected=host):
                return replace(failure, owner=None)  # It speaks of the past.
        return failure

    def _given_up(self, method: Method, route: Route, error: QuireError | None, timeout_s: float) -> QuireError:
        raised: QuireError
        if route.may_have_happened:
            raised = ProxyOutcomeUnknown(f"whether {method.name} happened is not known: {error}")
        elif isinstance(error, NotOwner):
            raised = StreamUnavailable(f"no proxy took {method.name} within {timeout_s:g} s: {error}")
        elif error is None or isinstance(error, ProxyUnreachable):
            raised = nobody_there(method, error)
        else:
            return error
        raised.__cause__ = error
        return raised


def nobody_there(method: Method, error: QuireError | None) -> ProxyUnreachable:
    """For a call that no proxy answered, with what happened last."""
    kind = "read" if method.service.endswith(".Reader") else "write"
    if error is None:
        return ProxyUnreachable(
            f"there is no {kind} proxy to call {method.name} at", hint=f"Start one with `quire {kind}-proxy run`."
        )
    return ProxyUnreachable(f"no {kind} proxy could be reached for {method.name}: {error}")
