"""`AsyncioNetwork` where a simulation cannot stand in: TLS, and a peer that does not answer at all."""

import asyncio
import socket
import ssl

import pytest
import trustme

from quire.runtime import AsyncioNetwork
from tests.support.network_checks import DEADLINE_S, LOOPBACK, Accepting, BufferedRecorder, Recorder

PAYLOAD = bytes(range(256)) * 1000


class Identity:
    """A certificate for localhost from an authority of its own, made for this run."""

    def __init__(self) -> None:
        self._authority = trustme.CA()
        self._certificate = self._authority.issue_cert("localhost", LOOPBACK)

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._certificate.configure_cert(context)
        return context

    def client(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self._authority.configure_trust(context)
        return context


@pytest.fixture(scope="module")
def identity() -> Identity:
    return Identity()


@pytest.mark.parametrize("make", [Recorder, BufferedRecorder])
async def test_bytes_pass_through_tls(identity: Identity, make: type[Recorder]) -> None:
    network, accepting = AsyncioNetwork(), Accepting(make)
    async with await network.serve(LOOPBACK, 0, accepting, tls=identity.server()) as server:
        transport, client = await network.connect(
            *server.address, make, timeout_s=DEADLINE_S, tls=identity.client(), server_hostname="localhost"
        )
        transport.write(PAYLOAD)
        peer = await accepting.first()
        await peer.until(lambda: len(peer.received) >= len(PAYLOAD))
        assert peer.received == PAYLOAD
        assert peer.transport.get_extra_info("cipher") is not None
        peer.transport.write(b"bye")
        await client.until(lambda: client.received == b"bye")
        await server.aclose()
        assert peer.events[-1] == "lost"
        await client.until_seen("lost")


async def test_a_certificate_for_somebody_else_is_an_os_error(identity: Identity) -> None:
    network = AsyncioNetwork()
    async with await network.serve(LOOPBACK, 0, Recorder, tls=identity.server()) as server:
        with pytest.raises(OSError, match="certificate verify failed"):
            await network.connect(
                *server.address, Recorder, timeout_s=DEADLINE_S, tls=identity.client(), server_hostname="elsewhere"
            )


async def test_an_open_connection_can_be_encrypted(identity: Identity) -> None:
    network, accepting = AsyncioNetwork(), Accepting()
    async with await network.serve(LOOPBACK, 0, accepting) as server:
        plain, client = await network.connect(*server.address, Recorder, timeout_s=DEADLINE_S)
        plain.write(b"STARTTLS")
        peer = await accepting.first()
        await peer.until(lambda: peer.received == b"STARTTLS")
        server_side, client_side = await asyncio.gather(
            network.start_tls(peer.transport, peer, identity.server(), timeout_s=DEADLINE_S, server_side=True),
            network.start_tls(plain, client, identity.client(), timeout_s=DEADLINE_S, server_hostname="localhost"),
        )
        client_side.write(PAYLOAD)
        await peer.until(lambda: len(peer.received) >= 8 + len(PAYLOAD))
        assert peer.received == b"STARTTLS" + PAYLOAD
        server_side.write(b"secret answer")
        await client.until(lambda: client.received == b"secret answer")
        await server.aclose()
        assert peer.events[-1] == "lost", "the server has lost sight of the connection it encrypted"
        await client.until_seen("lost")


async def test_a_peer_that_never_answers_is_a_timeout() -> None:
    """A listening socket whose queue is full drops further attempts without a word."""
    with socket.socket() as silent:
        silent.bind((LOOPBACK, 0))
        silent.listen(0)
        port: int = silent.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        try:
            for attempt in waiting:
                attempt.setblocking(False)
                attempt.connect_ex((LOOPBACK, port))
            with pytest.raises(TimeoutError):
                await AsyncioNetwork().connect(LOOPBACK, port, Recorder, timeout_s=0.2)
        finally:
            for attempt in waiting:
                attempt.close()
