"""How commands reach proxies: through those that a URI names, to all that are alive.

async with reached("quire://127.0.0.1:7400/default", timeout_s=10) as proxies:
    for member in proxies.members: ...
    await proxies.call("127.0.0.1:7400", LIST_OWNED, pb.ListOwnedRequest())
"""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.message import Message

from quire.app.running import cluster_in
from quire.cli.default_uri import FOLDER, check_none_elsewhere
from quire.cli.proxy_environment import tls_files, token
from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidUri, NotRunning, ProxyUnreachable, QuireError
from quire.proxy.client.uri import SCHEME, SCHEMES, ProxyUri, parse_proxy_uri
from quire.rpc.serving.grpc_channel import GrpcTransport
from quire.rpc.serving.methods import HANDSHAKE, Method
from quire.rpc.serving.tls import client_context
from quire.runtime import real_runtime


class Proxies:
    """All proxies of one namespace, as one of them knows them."""

    def __init__(self, transport: GrpcTransport, namespace: str, members: list[pb.Member], timeout_s: float) -> None:
        self._transport, self.namespace, self.members, self._timeout_s = transport, namespace, members, timeout_s

    def of_role(self, role: pb.Role) -> list[pb.Member]:
        return [member for member in self.members if member.role == role]

    async def call(self, address: str, method: Method, request: Message) -> Any:
        """Raises what the proxy says, `ProxyUnreachable` and `ProxyOutcomeUnknown`."""
        return await self._transport.channel(address).call(method, request, timeout_s=self._timeout_s)


def address_of(member: pb.Member) -> str:
    return f"{member.address.host}:{member.address.port}"


def proxy_uri(given: str | None) -> ProxyUri:
    """The proxies that a command means: without a URI those of the local cluster in `./quire-data`.

    Raises `InvalidUri`, `NotRunning` if nothing says so, and `InvalidArgument` if local clusters run elsewhere.
    """
    if given:
        if given.partition(":")[0].lower() not in SCHEMES:
            raise InvalidUri(
                f"{given!r} does not lead to proxies",
                hint="Name one of them: quire://host:7400/namespace.",
                uri=given,
            )
        return parse_proxy_uri(given)
    cluster = cluster_in(FOLDER)
    if cluster is None:
        check_none_elsewhere(f"no proxy is named, and no cluster runs in {FOLDER}", "--uri or QUIRE_URI")
    elif cluster.uri.startswith(f"{SCHEME}:"):
        return parse_proxy_uri(cluster.uri)
    raise NotRunning(
        "no proxy is named, and no local cluster with proxies runs on this machine",
        hint="Give --uri quire://host:7400/namespace, set QUIRE_URI, or start a local cluster with `quire up`.",
    )


@asynccontextmanager
async def reached(uri: ProxyUri, *, timeout_s: float) -> AsyncIterator[Proxies]:
    """Raises `ProxyUnreachable` if none of the proxies that are named answers."""
    runtime = real_runtime()
    tls = client_context(tls_files()) if uri.is_tls else None
    transport = GrpcTransport(runtime, f"{socket.gethostname()}/{os.getpid()}", tls=tls, token=token())
    try:
        request, first = pb.HandshakeRequest(namespace=uri.namespace), None
        for seed in uri.seeds:
            try:
                answer = await transport.channel(seed).call(HANDSHAKE, request, timeout_s=timeout_s)
            except QuireError as error:
                first = first or error
                continue
            yield Proxies(transport, answer.namespace, list(answer.members), timeout_s)
            return
        raise first or ProxyUnreachable(f"{uri} names no proxy")
    finally:
        await transport.aclose()
        await runtime.disk.aclose()
