"""Calls over TLS: our own client, and the official one, which insists on being told that HTTP/2 is spoken."""

from typing import Any

import grpc
import grpc.aio
import pytest

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import ProxyUnreachable
from quire.rpc.serving.grpc_channel import GrpcTransport
from quire.rpc.serving.grpc_server import GrpcServer, bind_grpc
from quire.rpc.serving.methods import SEAL
from quire.rpc.serving.transport import Caller
from quire.runtime import real_runtime
from tests.support.certificates import Certificates


async def seal(request: Any, caller: Caller) -> pb.StreamResponse:
    return pb.StreamResponse()


async def serve(certificates: Certificates) -> GrpcServer:
    server = await bind_grpc(real_runtime(), "127.0.0.1", 0, tls=certificates.server())
    await server.start({SEAL: seal})
    return server


async def test_our_client_calls_over_tls_and_not_without() -> None:
    certificates = Certificates()
    server = await serve(certificates)
    address = f"localhost:{server.address[1]}"
    for tls in (certificates.client(), None):
        transport = GrpcTransport(real_runtime(), "c", tls=tls)
        if tls is not None:
            await transport.channel(address).call(SEAL, pb.StreamRequest(), timeout_s=10)
        else:
            with pytest.raises(ProxyUnreachable):
                await transport.channel(address).call(SEAL, pb.StreamRequest(), timeout_s=10)
        await transport.aclose()
    await server.aclose()


async def test_the_official_client_calls_over_tls() -> None:
    certificates = Certificates()
    server = await serve(certificates)
    credentials = grpc.ssl_channel_credentials(certificates.root())
    async with grpc.aio.secure_channel(f"localhost:{server.address[1]}", credentials) as channel:
        call = channel.unary_unary(SEAL.path, response_deserializer=pb.StreamResponse.FromString)
        await call(b"", metadata=(("x-client-id", "official"),))
    await server.aclose()
