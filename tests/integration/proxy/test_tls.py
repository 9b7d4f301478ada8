"""Proxies that are called over TLS only, as processes: clients, commands, the gateway, and one another."""

import asyncio
import json
import os
import subprocess
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from quire.errors import ProxyUnreachable
from quire.rpc.serving.tls import TlsFiles
from tests.support.certificates import Certificates
from tests.support.quire_command import run_quire
from tests.support.servers.served_cluster import Served, ServedCluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.xdist_group("served"), pytest.mark.timeout(300)]


async def quire_command(*words: str, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    return await asyncio.to_thread(run_quire, *words, environment=os.environ | environment)


async def is_not_let_in(served: Served, files: TlsFiles | None) -> None:
    with pytest.raises(ProxyUnreachable):
        async with served.connect(tls=files, connect_timeout_s=1.0):
            pass


@pytest.mark.extended
async def test_what_is_called_over_tls_is_not_reached_without_it(cluster: ServedCluster, tmp_path: Path) -> None:
    """Method: proxies ask callers for certificates. A client with one writes and reads, also after its stream was
    moved, for which one proxy calls the other. Who has no certificate, trusts another authority, or speaks plain gRPC
    is not let in; the client goes on."""
    files = Certificates().files(tmp_path)
    options = ("--tls-certificate", files.certificate, "--tls-key", files.key, "--tls-ca", files.ca, "--tls-clients")
    served = await asyncio.to_thread(
        Served.start, cluster, "encrypted", writers=2, readers=1, options=[str(each) for each in options]
    )
    async with served.connect(tls=files) as client:
        await client.create_stream("orders")
        async with client.open_writer("orders") as writer, client.open_reader("orders") as reader:
            await writer.append(b"before")
            assert (await anext(reader)).payload == b"before"

            other = tmp_path / "other"
            other.mkdir()
            strangers = Certificates().files(other)
            nameless, distrustful = replace(files, certificate=None, key=None), replace(files, ca=strangers.ca)
            await asyncio.gather(*(is_not_let_in(served, each) for each in (nameless, distrustful, strangers, None)))

            owner = await served.owner_of("orders")
            target = next(each for each in served.writers if each is not owner)
            environment = {
                "QUIRE_TLS_CA": str(files.ca),
                "QUIRE_TLS_CERTIFICATE": str(files.certificate),
                "QUIRE_TLS_KEY": str(files.key),
                "QUIRE_URI": served.uri("quires"),
            }
            listed = await quire_command("proxy", "list", "--json", **environment)
            assert len(json.loads(listed.stdout)["proxies"]) == 3, listed.stderr
            moved = await quire_command("proxy", "move", "orders", "--to", target.address, **environment)
            assert moved.returncode == 0, moved.stderr

            async def is_moved() -> bool:
                return "orders" in await asyncio.to_thread(target.debug, "streams")

            await eventually(is_moved, within_s=30, what="the other proxy has the stream, of which it was told by TLS")
            await writer.append(b"after")
            assert (await anext(reader)).payload == b"after"

            url = f"http://127.0.0.1:{served.readers[0].gateway_port}/v1/encrypted/streams/orders"
            with await asyncio.to_thread(urllib.request.urlopen, url, timeout=20) as answer:
                assert answer.status == 200, "the gateway calls proxies by TLS, as all others do"
