"""The names of streams, as proxies list them. Another proxy goes on where one stopped."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import QuireError
from quire.proxy.client.hosts import Hosts
from quire.proxy.client.requests import Requests, nobody_there
from quire.rpc.serving.methods import LIST_STREAMS
from quire.rpc.serving.transport import Transport


class Listing:
    """The lists of one client."""

    def __init__(self, transport: Transport, hosts: Hosts, requests: Requests, *, timeout_s: float) -> None:
        """`timeout_s` is how long a proxy is looked for."""
        self._transport, self._hosts, self._requests, self._timeout_s = transport, hosts, requests, timeout_s

    async def scan(self, prefix: str) -> AsyncGenerator[str]:
        """All names that begin with `prefix`, in the order of the tree. Never ends early: raises if it cannot go on."""
        request = pb.ListStreamsRequest(namespace=self._hosts.namespace, prefix=prefix)
        async with aclosing(self._pages(request)) as pages:
            async for page in pages:
                for name in page.streams:
                    request.after = name  # Where another proxy would go on.
                    yield name

    async def watch(self) -> AsyncGenerator[frozenset[str]]:
        """The top-level names now, and again whenever they changed."""
        seen: frozenset[str] | None = None
        request = pb.ListStreamsRequest(namespace=self._hosts.namespace, watch=True)
        async with aclosing(self._pages(request)) as pages:
            async for page in pages:
                names = frozenset(page.streams)
                if names != seen:  # Another proxy begins with what is there, too.
                    seen = names
                    yield names

    async def _pages(self, request: pb.ListStreamsRequest) -> AsyncGenerator[pb.ListStreamsResponse]:
        """Until a proxy has said everything; one that watches never has."""
        route, error = None, None
        while True:
            route = route or self._requests.route(self._timeout_s)
            address = await self._requests.next_proxy(route, self._candidates)
            if address is None:
                raise nobody_there(LIST_STREAMS, error)
            try:
                async with self._transport.channel(address).stream(LIST_STREAMS, request) as pages:
                    async for page in pages:
                        route = None
                        yield page
                if not request.watch:
                    return
            except QuireError as raised:
                error = raised
                route = route or self._requests.route(self._timeout_s)
                if not self._requests.on_failure(route, address, error):
                    raise

    def _candidates(self) -> list[str]:
        return self._hosts.writers_of("") or self._hosts.readers_of("")
