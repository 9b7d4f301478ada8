"""Writers as real processes: the one that writes is killed every few seconds, and another one takes over.

A reader follows the stream all the time. Nothing that was acknowledged may be missing, and what the reader saw must be
what is in the stream. `QUIRE_FAILOVER_SECONDS=600` for longer; the failover times are printed (`pytest -s`).
"""

import asyncio
import json
import os
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from quire.codec.stream.records import LogRecord
from quire.errors import QuireError
from quire.runtime import real_runtime
from quire.stream.binding import create_namespace
from quire.stream.namespace import Namespace, open_namespace
from quire.types import DLSN, EntryId, Lssn, SlotId
from tests.support.programs.failover_client import SETTINGS, STORE_SETTINGS, STREAM, payload_of
from tests.support.servers.killable import BookieProcess, Process
from tests.support.servers.sqlite_bookie import new_cluster
from tests.support.waiting import at_a_random_moment, eventually

pytestmark = pytest.mark.extended

SECONDS = float(os.environ.get("QUIRE_FAILOVER_SECONDS", "20"))
KILL_EVERY_S = 2.5
WRITERS = ("w1", "w2")
BOOKIES = ("b0", "b1", "b2")


class WriterProcess(Process):
    """One of those that want to write the stream. Each life has a diary of its own."""

    def __init__(self, name: str, folder: Path, uri: str) -> None:
        super().__init__(name, folder)
        self._folder, self._uri = folder, uri

    @property
    def diaries(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self.name}.*.diary"))

    def command(self) -> list[str]:
        author = f"{self.name}.{self.lives}"
        return [
            *("-m", "tests.support.programs.failover_client", "--uri", self._uri),
            *("--author", author, "--diary", str(self._folder / f"{author}.diary")),
        ]

    def lines(self) -> list[dict[str, Any]]:
        """All that its lives wrote. A line that was never finished says nothing."""
        return [
            {"author": path.stem, **json.loads(line)}
            for path in self.diaries
            for line in path.read_bytes().split(b"\n")[:-1]
        ]

    def last_acknowledged_s(self) -> float:
        return max((line["at_s"] for line in self.lines() if line["event"] == "acknowledged"), default=0.0)


async def follow(namespace: Namespace, seen: list[LogRecord]) -> None:
    """Ends when the stream is sealed."""
    async with namespace.open_reader(STREAM, start="earliest") as reader:
        async for batch in reader.batches():
            seen += batch


async def kill_owners(writers: list[WriterProcess]) -> list[float]:
    """Kill whoever writes, again and again. Returns how long it took until somebody else was acknowledged."""
    loop, failovers_s = asyncio.get_running_loop(), []
    end_s = loop.time() + SECONDS
    while loop.time() < end_s:
        await at_a_random_moment(KILL_EVERY_S, 1.0)
        owner = max(writers, key=WriterProcess.last_acknowledged_s)
        killed_s = loop.time()
        owner.kill()

        async def another_writes(killed_s: float = killed_s) -> bool:
            return any(writer.last_acknowledged_s() > killed_s for writer in writers)

        await eventually(another_writes, within_s=60, what="another writer took over")
        failovers_s.append(min(s for writer in writers if (s := writer.last_acknowledged_s()) > killed_s) - killed_s)
        owner.start()
    return failovers_s


def prove(records: list[LogRecord], lines: list[dict[str, Any]]) -> Counter[str]:
    """That the stream is what its writers were told."""
    found: Counter[str] = Counter(records=len(records))
    at = {record.dlsn: record.payload for record in records}
    assert [record.dlsn for record in records] == sorted(at), "the reader was shown records out of order, or twice"
    assert len(set(at.values())) == len(at), "a record is in the stream twice"
    sent: set[bytes] = set()
    owners: dict[Lssn, set[str]] = {}
    for line in lines:
        numbers = range(line.get("first", 0), line.get("end", 0))
        payloads = [payload_of(line["author"], number) for number in numbers]
        if line["event"] == "sent":
            sent.update(payloads)
        elif line["event"] == "acknowledged":
            dlsns = [DLSN(Lssn(lssn), EntryId(entry), SlotId(slot)) for lssn, entry, slot in line["dlsns"]]
            assert [at.get(dlsn) for dlsn in dlsns] == payloads, f"acknowledged, and not in the stream: {line}"
            for dlsn in dlsns:
                owners.setdefault(dlsn.lssn, set()).add(line["author"])
            found["acknowledged"] += len(dlsns)
        else:
            found[line.get("error", line["event"])] += 1
    assert set(at.values()) <= sent, "the stream has records that nobody sent"
    shared = {lssn: authors for lssn, authors in owners.items() if len(authors) > 1}
    assert not shared, f"segments with more than one writer: {shared}"
    found["segments"] = len(owners)
    return found


@pytest.mark.xdist_group("load")  # Tests of this group take the machine for themselves: one after the other.
@pytest.mark.timeout(SECONDS * 2 + 300)
async def test_nothing_acknowledged_is_lost_while_writers_are_killed(tmp_path: Path) -> None:
    runtime = real_runtime()
    cluster_uri = await new_cluster(runtime, tmp_path)
    uri = f"distributedlog+sqlite:{tmp_path}/metadata.db/ns"
    await create_namespace(uri, runtime=runtime)
    bookies = [BookieProcess(name, tmp_path, cluster_uri, session_s=2.0) for name in BOOKIES]
    writers = [WriterProcess(name, tmp_path, uri) for name in WRITERS]
    seen: list[LogRecord] = []
    try:
        for bookie in bookies:
            bookie.start()
        async with open_namespace(uri, store_settings=STORE_SETTINGS, settings=SETTINGS) as namespace:
            await namespace.create_stream(STREAM)
            following = asyncio.create_task(follow(namespace, seen))
            for writer in writers:
                writer.start()

            async def somebody_writes() -> bool:
                return any(writer.last_acknowledged_s() for writer in writers)

            await eventually(somebody_writes, within_s=60, what="a writer writes")
            failovers_s = await kill_owners(writers)
            for process in (*bookies, *writers):
                assert not process.died_by_itself, f"{process.name} ended by itself:\n{process.log_end()}"
            for writer in writers:
                writer.kill()
            await seal(namespace)
            await asyncio.wait_for(following, 60)
    finally:
        for process in (*writers, *bookies):
            process.kill()
    found = prove(seen, [line for writer in writers for line in writer.lines()])
    assert found["acknowledged"] > 100
    assert failovers_s
    print(
        f"{len(failovers_s)} failovers, {statistics.median(failovers_s):.2f} s in the middle, "
        f"{max(failovers_s):.2f} s at most; {dict(found)}"
    )


async def seal(namespace: Namespace) -> None:
    """The last writer's session may still have the lock."""

    async def is_sealed() -> bool:
        try:
            async with namespace.open_writer(STREAM) as writer:
                await writer.seal()
        except QuireError as error:
            if not error.retryable:
                raise
            return False
        return True

    await eventually(is_sealed, within_s=60, what="the stream is sealed")
