"""The guide to streams: its programs run on real bookies, and its table has every setting."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.support.documents import ROOT, blocks
from tests.support.servers.killable import BookieProcess
from tests.support.servers.sqlite_bookie import new_cluster
from tests.support.waiting import eventually

import quire
from quire.errors import QuireError
from quire.runtime import real_runtime
from quire.stream.binding import create_namespace
from quire.stream.settings import StreamSettings

GUIDE = "docs/guide/streams.md"


@pytest.fixture
async def uri(tmp_path: Path) -> AsyncIterator[str]:
    """A namespace on three bookies."""
    cluster = await new_cluster(real_runtime(), tmp_path)
    namespace = f"distributedlog+sqlite:{tmp_path}/metadata.db/ns"
    await create_namespace(namespace)
    bookies = [BookieProcess(f"b{number}", tmp_path, cluster, session_s=5.0) for number in range(3)]
    try:
        for bookie in bookies:
            bookie.start()

        async def can_write() -> bool:
            async with quire.ledgers(cluster) as ledgers:
                try:
                    async with ledgers.create():
                        return True
                except QuireError:
                    return False

        await eventually(can_write, within_s=60, what="three bookies take entries")
        yield namespace
    finally:
        for bookie in bookies:
            bookie.kill()


def shown() -> dict[str, Any]:
    functions: dict[str, Any] = {}
    for block in blocks(GUIDE, "python"):
        exec(compile(block, GUIDE, "exec"), functions)
    return functions


async def test_the_programs_of_the_guide_work(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    functions = shown()
    assert await functions["write_and_read"](uri) == [b"paid", b"packed", b"sent"]
    await functions["without_a_block"](uri)
    async with quire.connect(uri) as client:
        await client.seal_stream("orders")
        assert (await client.stream_info("refunds")).record_count == 1, "the writer was closed"
    async with asyncio.timeout(30):
        await functions["follow"](uri, None)
        everything = capsys.readouterr().out
        assert [line.split(" ", 2)[2] for line in everything.splitlines()] == ["b'paid'", "b'packed'", "b'sent'"]
        second = everything.splitlines()[1].split(" ")[0]
        await functions["follow"](uri, second)
    assert capsys.readouterr().out == "".join(everything.splitlines(keepends=True)[1:])


def test_every_setting_is_in_the_guide() -> None:
    named = {
        word.strip("` ")
        for line in (ROOT / GUIDE).read_text().splitlines()
        if line.startswith("| `")
        for word in line.split("|")[1].split(",")
    }
    assert {setting.name for setting in fields(StreamSettings)} <= named
