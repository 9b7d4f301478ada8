"""What carries calls between clients and proxies. gRPC does (`grpc_channel`, `grpc_server`), on real sockets or, in a
simulation, on the simulated network (`quire.testing.sim_calls`); nobody above this can tell.

A handler is given a request, and who calls. It returns the response, or yields responses; what it raises ends the call:
a `QuireError` is told to the caller as its result (see `results`), anything else as INTERNAL, with an event for us.

Invariants, checked for each transport by `tests/contract/serving`:
  PulledNotPushed   a handler that yields is asked for the next response when the last one was handed to the network,
                    and a handler's requests are read when it asks for them. So a slow peer holds a place, not a queue.
                    What an `Offering` handler hands out by itself it keeps unless the network takes it at once.
  EndsTogether      when the caller goes away, the handler's generator is closed; when the handler ends, the caller
                    hears.
  Certainty         `ProxyUnreachable` says that no handler saw the call; otherwise it is `ProxyOutcomeUnknown`.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from typing import Any, Final, Protocol, Self, TypeAlias, runtime_checkable

from google.protobuf.message import Message

from quire.rpc.serving.methods import Method
from quire.values import dataclass

_TRACE_PARENT: Final = re.compile(r"[0-9a-f]{2}-(?P<trace_id>(?!0{32})[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call, as far as it says."""

    client_id: str
    peer: str = ""
    """Where it comes from."""
    attempt: int = 1
    """How often this request was sent, this time included."""
    tried: tuple[str, ...] = ()
    """Proxies that it could not reach, or that it was not to use."""
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def trace_id(self) -> str | None:
        """Of the trace that the call belongs to, if it says so in `traceparent`, as the W3C has it."""
        match = _TRACE_PARENT.fullmatch(self.metadata.get("traceparent", ""))
        return match["trace_id"] if match is not None else None

    def facts(self) -> dict[str, str]:
        """For events about a call: who makes it."""
        traced = {"trace_id": self.trace_id} if self.trace_id is not None else {}
        return {"client_id": self.client_id, "peer": self.peer, **traced}


Take: TypeAlias = Callable[[bytes], bool]
"""Hand a response to the network, unless that would have to wait: says whether it was taken."""


@runtime_checkable
class Offering(Protocol):
    """Responses that are also handed out while the next one is waited for. To wake a task for each of hundreds of calls
    that wait for the same thing would cost more than all else.
    """

    def offer_to(self, take: Take) -> None:
        """Called once, before the first response is asked for. Until that one was given nothing is taken."""
        ...


UnaryHandler: TypeAlias = Callable[[Any, Caller], Awaitable[Message]]
StreamHandler: TypeAlias = Callable[[Any, Caller], AsyncIterator[Message | bytes]]
"""May yield messages that are encoded already, as bytes."""
DuplexHandler: TypeAlias = Callable[[AsyncIterator[Any], Caller], AsyncIterator[Message | bytes]]
Handlers: TypeAlias = Mapping[Method, UnaryHandler | StreamHandler | DuplexHandler]


class ServerStream(Protocol):
    """The responses of one call, one after the other. `async for` ends when the handler did, and raises what it
    raised."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Any: ...


class Duplex(ServerStream, Protocol):
    """A call in which both sides send."""

    async def send(self, request: Message) -> None:
        """Returns when the network has taken it. Raises `ProxyOutcomeUnknown` if the call is over."""
        ...

    async def done_sending(self) -> None:
        """Nothing more will be sent; responses go on."""
        ...


class Channel(Protocol):
    """The way to one proxy. It connects when it is needed, and again when it has to."""

    @property
    def address(self) -> str:
        """host:port"""
        ...

    async def call(
        self, method: Method, request: Message, *, timeout_s: float, attempt: int = 1, tried: Sequence[str] = ()
    ) -> Any:
        """One request, one response. Raises the error that the proxy told of, `ProxyUnreachable` if the proxy was not
        reached, and `ProxyOutcomeUnknown` if it may have been: also when `timeout_s` have passed."""
        ...

    def stream(
        self, method: Method, request: Message, *, attempt: int = 1, tried: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[ServerStream]:
        """One request, many responses, for the block. Leaving it ends the call."""
        ...

    def duplex(self, method: Method) -> AbstractAsyncContextManager[Duplex]:
        """Many of both, for the block. Leaving it ends the call."""
        ...


class Transport(Protocol):
    """All ways of one client to proxies."""

    def channel(self, address: str) -> Channel:
        """The way to the proxy at host:port. There is one for each address."""
        ...

    async def aclose(self) -> None: ...


class Server(Protocol):
    """Where one proxy is served. Made bound and silent: `start` comes when the proxy knows its own address."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and port actually bound."""
        ...

    async def start(self, handlers: Handlers) -> None:
        """Take calls."""
        ...

    def set_serving(self, serving: bool) -> None:
        """What health checks are told."""
        ...

    async def aclose(self, *, grace_s: float = 0.0) -> None:
        """Take no new calls, and end those that are left after `grace_s`."""
        ...
