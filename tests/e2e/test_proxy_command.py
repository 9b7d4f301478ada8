"""`quire proxy` and `quire ring`, and proxies as commands of their own, on real processes."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.servers.local_cluster import LocalCluster, environment, quire_command
from tests.support.waiting import eventually


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, proxies=2) as running:
        yield running


def told(cluster: LocalCluster, *arguments: str, code: int = 0) -> Any:
    """What a command says as JSON."""
    return json.loads(quire_command(*arguments, "--json", folder=cluster.folder, state=cluster.folder, code=code))


def owner_of(cluster: LocalCluster, stream: str) -> str | None:
    owners = [row["proxy"] for row in told(cluster, "proxy", "owned")["streams"] if row["stream"] == stream]
    return owners[0] if owners else None


async def test_a_stream_moves_from_one_proxy_to_the_other_and_back(cluster: LocalCluster) -> None:
    """Moved by hand, then by draining its owner; what is written before, between and after is there, in order."""
    proxies = [
        row["proxy"]
        for row in (await asyncio.to_thread(told, cluster, "proxy", "list"))["proxies"]
        if row["role"] == "write"
    ]
    assert len(proxies) == 2
    async with cluster.connect() as client, client.open_writer("orders") as writer:
        await writer.append(b"before")
        first = await asyncio.to_thread(owner_of, cluster, "orders")
        (second,) = [each for each in proxies if each != first]
        moved = await asyncio.to_thread(told, cluster, "proxy", "move", "orders", "--to", second)
        assert (moved["from"], moved["to"]) == (first, second)
        await writer.append(b"between")
        assert await asyncio.to_thread(owner_of, cluster, "orders") == second
        drained = await asyncio.to_thread(told, cluster, "proxy", "drain", second)
        assert drained["proxy"] == second
        await writer.append(b"after")

        async def is_back() -> bool:
            return await asyncio.to_thread(owner_of, cluster, "orders") == first

        await eventually(is_back, within_s=30, what="the other proxy has it")
        async with client.open_reader("orders") as reader:
            assert [(await anext(reader)).payload for _ in range(3)] == [b"before", b"between", b"after"]


@pytest.mark.extended
async def test_streams_are_balanced_when_an_operator_asks_for_it(cluster: LocalCluster) -> None:
    """All streams are at one proxy: the plan is shown, and made only when that is said. Nothing is lost meanwhile."""
    streams = [f"orders-{number}" for number in range(4)]
    rows = (await asyncio.to_thread(told, cluster, "proxy", "list"))["proxies"]
    full, empty = [row["proxy"] for row in rows if row["role"] == "write"]
    async with cluster.connect() as client, AsyncExitStack() as stack:
        writers = [await stack.enter_async_context(client.open_writer(stream)) for stream in streams]
        for writer in writers:
            await writer.append(b"before")
        for proxy in (empty, full):  # Both, since a stream that stays where it was written to weighs more for a minute.
            for stream in streams:
                await asyncio.to_thread(told, cluster, "proxy", "move", stream, "--to", proxy)
        plan = await asyncio.to_thread(told, cluster, "proxy", "balance")
        assert (plan["planned"], plan["moves"]) == ([], []), "they have just come, and there is little to do"
        eager = ("proxy", "balance", "--rest", "0", "--water-mark", "0")
        plan = await asyncio.to_thread(told, cluster, *eager)
        assert {row["proxy"]: row["streams"] for row in plan["proxies"]} == {full: 4, empty: 0}
        assert [(row["from"], row["to"]) for row in plan["planned"]] == [(full, empty)] * 2
        assert plan["moves"] == []
        error = (await asyncio.to_thread(told, cluster, *eager, "--run", code=1))["error"]
        assert "--yes" in error["hint"]
        done = await asyncio.to_thread(told, cluster, *eager, "--run", "--yes")
        assert [row["problem"] for row in done["moves"]] == [None, None]
        owners = [await asyncio.to_thread(owner_of, cluster, stream) for stream in streams]
        assert (owners.count(full), owners.count(empty)) == (2, 2)
        for stream, writer in zip(streams, writers, strict=True):
            await writer.append(b"after")
            async with client.open_reader(stream) as reader:
                assert [(await anext(reader)).payload for _ in range(2)] == [b"before", b"after"]


@pytest.mark.extended
def test_the_ring_says_where_streams_belong(cluster: LocalCluster) -> None:
    ring = told(cluster, "ring", "show")["ring"]
    assert len(ring) == 2
    assert sum(row["share"] for row in ring) == pytest.approx(1)
    (row,) = told(cluster, "ring", "lookup", "orders")["streams"]
    assert sorted(row["candidates"]) == sorted(each["proxy"] for each in ring)
    assert row["owner"] is None
    (row,) = told(cluster, "ring", "lookup", "orders", "--readers")["streams"]
    assert not set(row["candidates"]) & {each["proxy"] for each in ring}


@pytest.mark.extended
def test_a_proxy_that_takes_nothing_new_keeps_what_it_has(cluster: LocalCluster) -> None:
    (row,) = told(cluster, "ring", "lookup", "orders")["streams"]
    wanted, other = row["candidates"]
    assert told(cluster, "proxy", "accept", wanted, "--no")["status"] == "WRITE_ONLY"
    subprocess.run(
        [sys.executable, "-m", "quire", "write", "orders"],
        input=b"paid\n",
        cwd=cluster.folder,
        env=environment(cluster.folder),
        check=True,
        timeout=60,
    )
    assert owner_of(cluster, "orders") == other
    assert told(cluster, "proxy", "accept", wanted)["status"] == "WRITE_AND_ACCEPT"


def test_mistakes_are_one_sentence_and_a_hint(cluster: LocalCluster, tmp_path: Path) -> None:
    error = told(cluster, "proxy", "move", "orders", "--to", "127.0.0.1:1", code=1)["error"]
    assert error["kind"] in ("InvalidArgument", "ProxyUnreachable")
    error = told(cluster, "proxy", "list", "--uri", "file:./data", code=1)["error"]
    assert error["hint"] == "Name one of them: quire://host:7400/namespace."
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    printed = json.loads(quire_command("proxy", "list", "--json", folder=nowhere, state=nowhere, code=1))
    assert printed["error"]["kind"] == "NotRunning"


@pytest.mark.extended
def test_a_port_that_is_taken_is_told(cluster: LocalCluster) -> None:
    (address, *_) = [row["proxy"] for row in told(cluster, "proxy", "list")["proxies"]]
    uri = cluster.wait_for("started")["direct_uri"]
    printed = quire_command(
        "write-proxy", "run", "--uri", uri, "--listen", address, folder=cluster.folder, state=cluster.folder, code=1
    )
    assert f"error: {address} cannot be listened on" in printed
    assert "hint: Choose another port" in printed
