"""What balancers told proxies to do, and the proof that those obeyed as they should.

LateOrdersFail    no proxy obeys a balancer after it has obeyed a later one
RestFirst         no stream is moved that was not where it is for long enough
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import LockLost, VersionConflict
from quire.proxy.write.proxy import WriteProxy


@dataclass
class Order:
    """A balancer wants a stream moved."""

    proxy: str
    """Each life of a proxy counts for itself: a new one has heard of nobody."""
    term: int
    stream: str
    target: str
    here_s: float
    is_obeyed: bool = True


class Orders:
    """All orders of one run, as proxies got them."""

    def __init__(self) -> None:
        self.all: list[Order] = []
        self.given = asyncio.Event()
        self.on_send: Callable[[str], None] = lambda balancer: None
        """Called with the host of a balancer just before it gives an order."""

    def note(self, proxy: WriteProxy) -> None:
        """Have all orders to this proxy noted, from now on."""
        release = proxy.release

        async def noted(request: pb.ReleaseRequest, caller: Any) -> pb.StreamResponse:
            if not request.term:
                return await release(request, caller)
            stream = proxy.table.get(request.stream)
            here_s = 0.0 if stream is None else stream.served_s
            target = request.suggested_owner.host
            order = Order(proxy.address.instance, request.term, request.stream, target, here_s)
            self.all.append(order)
            self.given.set()
            try:
                return await release(request, caller)
            except (LockLost, VersionConflict):
                order.is_obeyed = False
                raise

        proxy.release = noted  # type: ignore[method-assign]
        balancer = proxy.balancer
        assert balancer is not None
        move = balancer._move

        async def sent(wanted: pb.StreamMove, term: int) -> str:
            self.on_send(proxy.address.host)
            return await move(wanted, term)

        balancer._move = sent  # type: ignore[method-assign, assignment]

    def prove(self, *, rest_s: float) -> None:
        latest: dict[str, int] = {}
        for order in self.all:
            if order.is_obeyed:
                assert order.term >= latest.get(order.proxy, 0), f"LateOrdersFail: {order}"
                assert order.here_s >= rest_s, f"RestFirst: {order}"
                latest[order.proxy] = order.term
