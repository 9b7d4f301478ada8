"""Calls between clients and proxies in a simulation: the real transport, gRPC over HTTP/2, on the simulated network.

    server = await bind_sim(sim.host("proxy").runtime, "proxy", 4181)
    await server.start(handlers)
    transport = SimTransport(sim.host("client").runtime, "client-1")
    answer = await transport.channel("proxy:4181").call(WRITE_ONCE, request, timeout_s=5)

Nothing is simulated but the network below: frames, windows and keep-alive are those of production, in virtual time.
"""

from quire.rpc.serving.grpc_channel import GrpcTransport
from quire.rpc.serving.grpc_server import GrpcServer, bind_grpc
from quire.rpc.serving.settings import CallSettings, ServingSettings
from quire.rpc.serving.tokens import Token
from quire.runtime import Runtime


class SimTransport(GrpcTransport):
    """All ways of one simulated client to proxies."""

    def __init__(
        self, runtime: Runtime, client_id: str, *, settings: CallSettings | None = None, token: Token | None = None
    ) -> None:
        super().__init__(runtime, client_id, settings=settings, token=token)


async def bind_sim(runtime: Runtime, host: str, port: int, *, settings: ServingSettings | None = None) -> GrpcServer:
    """Listen on a simulated host, silent until `start`."""
    return await bind_grpc(runtime, host, port, settings=settings)
