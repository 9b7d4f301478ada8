"""What operators ask of a write proxy: what it owns, how much it has to do, and that it takes no more, or leaves."""

from dataclasses import asdict
from typing import Any, Protocol

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument, Unavailable
from quire.protocol.rate_limits import load
from quire.proxy.write.balancer import Balancer
from quire.proxy.write.metrics import StreamFigures
from quire.proxy.write.owned_stream import OwnedStream
from quire.proxy.write.routing import Routing
from quire.proxy.write.stream_table import StreamTable
from quire.rpc.serving import methods
from quire.rpc.serving.methods import Method
from quire.rpc.serving.transport import Caller, UnaryHandler
from quire.stream.namespace import Namespace
from quire.telemetry.events import logger

_log = logger("proxy.write")


class AdministeredProxy(Protocol):
    """A write proxy, as far as its operators need it."""

    namespace: Namespace
    table: StreamTable
    routing: Routing
    balancer: Balancer | None

    @property
    def status(self) -> pb.ServerStatus: ...

    def life_of(self, stream: OwnedStream) -> str: ...

    def set_accepting(self, accept: bool) -> None: ...

    def ask_to_drain(self, *, streams_per_s: float = 0.0) -> None: ...


class Admin:
    """The Admin service of one proxy, and the same for its debug pages."""

    def __init__(self, proxy: AdministeredProxy) -> None:
        self._proxy = proxy
        self._clock = proxy.namespace.context.runtime.clock

    def handlers(self) -> dict[Method, UnaryHandler]:
        return {
            methods.SET_ACCEPT_NEW_STREAMS: self.set_accept_new_streams,
            methods.DRAIN: self.drain,
            methods.LIST_OWNED: self.list_owned,
            methods.GET_LOAD: self.get_load,
            methods.DUMP_RING: self.dump_ring,
            methods.BALANCE: self.balance,
        }

    async def set_accept_new_streams(self, request: pb.SetAcceptNewStreamsRequest, caller: Caller) -> pb.AdminResponse:
        _log.info("admin.accept", accept=request.accept, client_id=caller.client_id)
        self._proxy.set_accepting(request.accept)
        return pb.AdminResponse(status=self._proxy.status)

    async def drain(self, request: pb.DrainRequest, caller: Caller) -> pb.AdminResponse:
        """Begins it, and does not wait."""
        if not 0 <= request.streams_per_s < float("inf"):
            raise InvalidArgument(f"{request.streams_per_s} streams a second is no rate")
        _log.info("admin.drain", client_id=caller.client_id)
        self._proxy.ask_to_drain(streams_per_s=request.streams_per_s)
        return pb.AdminResponse(status=self._proxy.status)

    async def list_owned(self, request: pb.ListOwnedRequest, caller: Caller) -> pb.ListOwnedResponse:
        table = self._proxy.table
        return pb.ListOwnedResponse(streams=[self._stream(stream) for stream in table], room=table.room)

    async def get_load(self, request: pb.GetLoadRequest, caller: Caller) -> pb.GetLoadResponse:
        now_s, table = self._clock.monotonic(), self._proxy.table
        requests_per_s, bytes_per_s = table.requests.per_s(now_s), table.bytes.per_s(now_s)
        return pb.GetLoadResponse(
            status=self._proxy.status,
            requests_per_s=requests_per_s,
            bytes_per_s=bytes_per_s,
            load=load(bytes_per_s=bytes_per_s, requests_per_s=requests_per_s),
            streams=len(table.owned),
        )

    async def dump_ring(self, request: pb.DumpRingRequest, caller: Caller) -> pb.DumpRingResponse:
        """Where each of these streams would be taken if nobody had it."""
        routing = self._proxy.routing
        return pb.DumpRingResponse(
            members=routing.members(),
            streams=[pb.Ownership(stream=stream, owner=routing.place(stream)) for stream in request.streams],
        )

    async def balance(self, request: pb.BalanceRequest, caller: Caller) -> pb.BalanceResponse:
        """Plan, or carry out what was planned, if this proxy is the balancer."""
        if request.moves:
            _log.info("admin.balance", moves=len(request.moves), client_id=caller.client_id)
        if self._proxy.balancer is None:
            raise Unavailable("this proxy has no way to others, and balances nothing")
        return await self._proxy.balancer.asked(request)

    def _stream(self, stream: OwnedStream) -> pb.OwnedStream:
        now_s = self._clock.monotonic()
        return pb.OwnedStream(
            stream=stream.name,
            state=stream.state.name,
            epoch=stream.epoch,
            requests_per_s=stream.requests.per_s(now_s),
            bytes_per_s=stream.bytes.per_s(now_s),
            waiting=stream.waiting,
            last_error=str(stream.error or ""),
            owned_s=stream.served_s,
            life=self._proxy.life_of(stream),
        )

    def stream_figures(self) -> dict[str, StreamFigures]:
        now_s = self._clock.monotonic()
        return {
            stream.name: StreamFigures(stream.requests.per_s(now_s), stream.bytes.per_s(now_s), stream.waiting)
            for stream in self._proxy.table
        }

    # --- For people who look for a cause

    def figures(self) -> dict[str, Any]:
        now_s, table = self._clock.monotonic(), self._proxy.table
        return {
            "status": pb.ServerStatus.Name(self._proxy.status),
            "streams_cached": len(table),
            "streams_owned": len(table.owned),
            "holds": len(table.refusals),
            "requests_per_s": table.requests.per_s(now_s),
            "bytes_per_s": table.bytes.per_s(now_s),
        }

    def debug(self) -> dict[str, Any]:
        proxy = self._proxy
        return {
            "streams": {stream.name: self._shown(stream) for stream in proxy.table},
            "ring": [f"{member.address.host}:{member.address.port}" for member in proxy.routing.members()],
            "limits": asdict(proxy.table.limits),
        }

    def _shown(self, stream: OwnedStream) -> dict[str, Any]:
        now_s, serving = self._clock.monotonic(), stream.serving
        shown: dict[str, Any] = {
            "state": stream.state.name,
            "epoch": stream.epoch,
            "waiting": stream.waiting,
            "requests_per_s": stream.requests.per_s(now_s),
            "bytes_per_s": stream.bytes.per_s(now_s),
            "idle_s": now_s - stream.used_s,
            "last_error": str(stream.error or ""),
        }
        if serving is not None:
            writer = serving.writer.statistics()
            shown |= {
                "in_flight_bytes": serving.in_flight_bytes,
                "producers": len(serving.producers),
                "last_txid": writer.last_txid,
                "segment_bytes": writer.segment_bytes,
                "in_flight_entries": writer.in_flight_entries,
            }
        return shown
