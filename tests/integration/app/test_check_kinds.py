"""Each kind of finding of `quire check`, on a real cluster: a stream for each, broken as crashes and hands break it."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from quire.cli.main import app
from quire.codec.stream_metadata.segment import Segment, encode_segment
from quire.codec.stream_metadata.tree import encode_allocation
from quire.metadata import ANY_VERSION
from quire.stream.archiving import archive_stream
from quire.stream.cold_nodes import ColdNodes
from quire.stream.namespace import Namespace, open_namespace
from quire.stream.nodes import StoredSegment, StreamNodes
from quire.testing.local import LocalCluster, local_cluster
from quire.types import DLSN, NO_ENTRY, BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState, Lssn, SlotId

GONE = tuple(BookieId(f"gone-{number}") for number in range(3))


class Breaker:
    """What is done to streams, each under the name of what it is to be told as."""

    def __init__(self, namespace: Namespace, archive: Path) -> None:
        self._namespace, self._context, self._archive = namespace, namespace.context, archive

    async def written(self, stream: str, segments: int = 1) -> list[StoredSegment]:
        for _ in range(segments):
            async with self._namespace.open_writer(stream) as writer:
                await writer.append_many([b"one", b"two"])
        return await StreamNodes(self._context.store, self._context.paths(stream)).all_segments()

    async def ledger_says(self, ledger: LedgerId, change: Callable[[LedgerMetadata], LedgerMetadata]) -> None:
        ledgers = self._context.ledgers.ledgers_metadata
        await ledgers.update(
            await ledgers.read(ledger), lambda found: None if change(found) == found else change(found)
        )

    async def segment_says(self, stream: str, stored: StoredSegment, data: bytes) -> None:
        await self._context.store.set(self._context.paths(stream).segment(stored.name), data, expected=ANY_VERSION)

    async def wrong_length(self) -> None:
        (stored,) = await self.written("wrong-length")
        await self.ledger_says(stored.segment.ledger_id, lambda found: replace(found, length=4711))

    async def open_ledger(self) -> None:
        (stored,) = await self.written("open-ledger")
        await self.ledger_says(
            stored.segment.ledger_id,
            lambda found: replace(found, state=LedgerState.OPEN, last_entry_id=NO_ENTRY, length=0),
        )

    async def too_short(self) -> None:
        (stored,) = await self.written("too-short")
        segment: Segment = stored.segment
        assert segment.completion is not None
        last = DLSN(segment.lssn, EntryId(1000), SlotId(0))
        longer = replace(segment, completion=replace(segment.completion, last_dlsn=last))
        await self.segment_says("too-short", stored, encode_segment(longer))

    async def unreadable(self) -> None:
        (stored,) = await self.written("unreadable")
        await self.ledger_says(
            stored.segment.ledger_id, lambda found: replace(found, fragments=(Fragment(EntryId(0), GONE),))
        )

    async def broken_chain(self) -> None:
        _, middle, _ = await self.written("broken-chain", 3)
        path = self._context.paths("broken-chain").segment(middle.name)
        await self._context.store.delete(path, expected=ANY_VERSION)

    async def damaged_segment(self) -> None:
        (stored,) = await self.written("damaged-segment")
        await self.segment_says("damaged-segment", stored, b"rubbish")

    async def half_purged(self) -> None:
        first, _ = await self.written("half-purged", 2)
        await self._namespace.truncate_stream("half-purged", before=DLSN(Lssn(2), EntryId(0), SlotId(0)))
        await self._context.ledgers.delete(first.segment.ledger_id)

    async def allocated(self) -> None:
        await self._namespace.create_stream("allocated")
        async with self._context.ledgers.create() as ledger:
            await ledger.append(b"in no segment")
        data = encode_allocation(ledger.id)
        await self._context.store.set(self._context.paths("allocated").allocation, data, expected=ANY_VERSION)

    async def left_over(self) -> None:
        await self.written("left-over")
        await archive_stream(self._context, "left-over", f"file:{self._archive}")
        nodes = ColdNodes(self._context.store, self._context.paths("left-over"))
        (placed,) = await nodes.whole_chain()
        assert placed.cold is not None
        await nodes.rewrite(placed.cold, replace(placed.cold.cold, ledger_left=LedgerId(123456)))

    async def damaged_ledger(self) -> LedgerId:
        async with self._context.ledgers.create() as ledger:
            await ledger.append(b"whatever")
        path = self._context.ledgers.ledgers_metadata.path(ledger.id)
        await self._context.store.set(path, b"rubbish", expected=ANY_VERSION)
        return ledger.id


def told(cluster: LocalCluster) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["check", "--uri", cluster.uri, "--json", "--timeout", "5"])
    assert done.output, done.exception
    found: list[dict[str, Any]] = json.loads(done.output)["findings"]
    assert done.exit_code == (1 if found else 0)
    return found


def test_each_kind_of_damage_is_told_for_what_it_is(tmp_path: Path) -> None:
    """Method: break one stream after the other, then look once. Nothing is told of what was not broken."""
    with local_cluster(tmp_path / "cluster", bookies=3) as cluster:

        async def break_all() -> tuple[LedgerId, dict[LedgerId, str]]:
            async with open_namespace(cluster.uri) as namespace:
                breaker = Breaker(namespace, tmp_path / "archive")
                await breaker.written("in-order", 2)
                await breaker.wrong_length()
                await breaker.open_ledger()
                await breaker.too_short()
                await breaker.unreadable()
                await breaker.broken_chain()
                await breaker.half_purged()
                await breaker.allocated()
                await breaker.left_over()
                names = {
                    each.ledger_id: name
                    for name in ("wrong-length", "unreadable")
                    for each in (await namespace.stream_info(name)).segments
                }
                await breaker.damaged_segment()
                return await breaker.damaged_ledger(), names

        damaged, names = asyncio.run(break_all())
        found = told(cluster)
    seen = {
        (each["kind"], each["severity"], names.get(each["ledger_id"]) or _stream(each) or each["ledger_id"])
        for each in found
    }
    assert seen == {
        ("broken chain", "lost", "broken-chain"),
        ("damaged metadata", "lost", "damaged-segment"),
        ("damaged metadata", "lost", damaged),
        ("unreadable ledger", "lost", "unreadable"),
        ("unreadable segment", "lost", "too-short"),
        ("allocation left over", "at risk", "allocated"),
        ("missing copies", "at risk", "unreadable"),
        ("open ledger", "at risk", "open-ledger"),
        ("half purged segment", "untidy", "half-purged"),
        ("left-over node", "untidy", "left-over"),
        ("wrong length", "untidy", "wrong-length"),
    }
    assert len(found) == len(seen)
    assert all(each["repair"] is None and each["advice"] for each in found), "none of it can be repaired without a risk"


def _stream(finding: dict[str, Any]) -> str:
    """The stream that a finding is about: its own name, without that of the namespace."""
    subject: str = finding["subject"]
    return subject.partition(",")[0].rpartition("/")[2] if subject.startswith("stream ") else ""
