"""A ledger client and real bookies that speak TLS: encrypted when they trust each other, a plain word when not."""

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from quire.errors import BookieUnavailable, NotEnoughBookies, QuireError
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.runtime import real_runtime
from quire.types import BookieId
from tests.integration.conftest import Run
from tests.support.servers.ports import free_port
from tests.support.servers.sqlite_bookie import BOOKIE, BookieProcess, new_cluster

B1 = BookieId(BOOKIE)
SETTINGS = LedgerSettings(call_timeout_s=20.0)


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@asynccontextmanager
async def bookie_with(folder: Path, certificate: trustme.LeafCert | None) -> AsyncIterator[str]:
    """A bookie of its own process at `localhost`, with this certificate; its cluster's URI."""
    arguments: tuple[str, ...] = ("--advertise", "localhost")
    if certificate is not None:
        certificate.private_key_pem.write_to_path(folder / "key.pem")
        for place, blob in enumerate(certificate.cert_chain_pems):
            blob.write_to_path(folder / "certificate.pem", append=place > 0)
        arguments += ("--tls-certificate", str(folder / "certificate.pem"), "--tls-key", str(folder / "key.pem"))
    runtime = real_runtime()
    uri = await new_cluster(runtime, folder)
    bookie = BookieProcess(runtime, folder, uri, port=free_port(), arguments=arguments)
    try:
        await bookie.start()
        yield uri
    finally:
        await bookie.kill()


async def write_three(ledgers: LedgerClient, *, deferred_sync: bool = False) -> int:
    async with ledgers.create(ensemble=1, write_quorum=1, ack_quorum=1, deferred_sync=deferred_sync) as ledger:
        await ledger.append_many([b"secret"] * 3)
        if deferred_sync:
            await ledger.force()
    return ledger.id


async def refused(uri: str, tls: ssl.SSLContext | None) -> QuireError:
    """Why no ledger can be created, well within the deadline; and what exists cannot be read either."""
    began_s = time.monotonic()
    async with open_ledgers(uri, tls=tls, settings=SETTINGS) as ledgers:
        with pytest.raises(NotEnoughBookies) as raised:
            await write_three(ledgers)
        assert [each async for each in ledgers.scan()] == [0], "no ledger was left behind"
        async with ledgers.open(0) as reader:
            with pytest.raises(BookieUnavailable):
                [entry async for entry in reader.read()]
    assert time.monotonic() - began_s < SETTINGS.call_timeout_s
    return raised.value


def test_ledgers_pass_through_tls_and_only_to_who_is_trusted(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        authority = trustme.CA()
        async with bookie_with(tmp_path, authority.issue_cert("localhost")) as uri:
            async with open_ledgers(uri, tls=trusting(authority), settings=SETTINGS) as ledgers:
                assert await write_three(ledgers) == 0
                await write_three(ledgers, deferred_sync=True)
                async with ledgers.open(0) as reader:
                    assert [entry.payload async for entry in reader.read()] == [b"secret"] * 3
                for version in (2, 3):
                    channel = ledgers.pool.channel(B1, version)
                    assert channel is not None
                    assert channel._transport.get_extra_info("ssl_object") is not None
                await ledgers.delete(1)
            error = await refused(uri, trusting(trustme.CA()))
            assert "CERTIFICATE_VERIFY_FAILED" in str(error)
            assert "certificate" in error.hint.lower()

    run(check())


async def test_a_certificate_for_another_host_is_not_taken(tmp_path: Path) -> None:
    authority = trustme.CA()
    async with bookie_with(tmp_path, authority.issue_cert("elsewhere.example")) as uri:
        async with open_ledgers(uri, settings=SETTINGS) as in_clear:
            await write_three(in_clear)
        error = await refused(uri, trusting(authority))
    assert "localhost" in str(error)


async def test_a_bookie_without_tls_is_told_of(tmp_path: Path) -> None:
    async with bookie_with(tmp_path, None) as uri:
        async with open_ledgers(uri, settings=SETTINGS) as in_clear:
            await write_three(in_clear)
        error = await refused(uri, trusting(trustme.CA()))
    assert "did not agree to TLS" in str(error)
    assert "Set TLS up on that bookie" in error.hint
