"""Rows of the failure table that are about restarts, on real processes: see `tests/support/servers/served_cluster.py`.

With QUIRE_TEST_LONG there are more of them.
"""

import asyncio
import os

import pytest

from tests.integration.proxy.authors import Author, following, proven
from tests.support.servers.served_cluster import Served
from tests.support.streams.served_history import History
from tests.support.waiting import eventually

IS_LONG = bool(os.environ.get("QUIRE_TEST_LONG"))
ROUNDS = 5 if IS_LONG else 1

pytestmark = [pytest.mark.xdist_group("served"), pytest.mark.timeout(900 if IS_LONG else 300)]


async def test_a_rolling_restart_fails_no_write(served: Served) -> None:
    """Row 8. One write proxy after the other is stopped by a signal, and started again, while streams are written. Each
    of them gives its streams to the other one first: no append fails, and each stream moves once a restart."""
    history = History()
    authors = [Author(history, f"rolling-{number}") for number in range(4)]
    async with served.connect() as client, asyncio.TaskGroup() as group:
        stop = asyncio.Event()

        async def write(author: Author) -> None:
            async with client.open_writer(author.written.stream) as writer, author.writing(writer):
                await stop.wait()

        for author in authors:
            group.create_task(write(author))
        for _ in range(ROUNDS):
            for proxy in served.writers:
                await everybody_writes(authors)
                await asyncio.to_thread(proxy.stop)
                proxy.start()
                await asyncio.to_thread(proxy.wait_ready)
        await everybody_writes(authors)
        stop.set()
    for author in authors:
        assert not author.written.refused
        assert 2 <= len({dlsn.lssn for dlsn in author.dlsns}) <= 1 + 2 * ROUNDS
    await proven(served, history)


@pytest.mark.extended
async def test_a_reader_goes_on_when_its_proxy_dies(served: Served) -> None:
    """Row 19. The read proxy is killed again and again while a stream is written and followed: the reader is given
    every record once, in order."""
    history, stream = History(), "read-on"
    author, (proxy,) = Author(history, stream), served.readers
    async with served.connect() as client, client.open_writer(stream) as writer:
        await author.append(writer)
        async with following(history, client, stream) as followed:
            for _ in range(2 * ROUNDS):
                async with author.writing(writer):

                    async def is_read() -> bool:
                        return len(followed.records) >= len(author.dlsns) - 50

                    await eventually(is_read, within_s=60, what="the reader keeps up")
                    proxy.kill()
                    proxy.start()
                    await asyncio.to_thread(proxy.wait_ready)
            await client.seal_stream(stream)
    assert len(followed.records) == len(author.dlsns)
    await proven(served, history)


async def everybody_writes(authors: list[Author]) -> None:
    counts = [len(author.dlsns) for author in authors]

    async def is_so() -> bool:
        return all(len(author.dlsns) > count + 5 for author, count in zip(authors, counts, strict=True))

    await eventually(is_so, within_s=60, what="every author goes on")
