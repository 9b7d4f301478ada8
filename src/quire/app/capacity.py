"""`quire capacity`: collect the facts that a forecast of a cluster's room is made from. Decides nothing.

Which part of a bookie's disk is garbage only the bookie itself knows: its admin API is asked, where it has one.
"""

import asyncio
import json
import urllib.request
from typing import Any, Final

from quire.app.inventory import Inventory, Operations, StreamFacts, ask_spaces, take_inventory
from quire.codec.stream_metadata.segment import Segment
from quire.errors import DamagedMetadata, NoSuchNode
from quire.metadata import Cluster
from quire.protocol.capacity import BookieSpace, Capacity, Holding
from quire.protocol.shares import LedgerEnd, bytes_by_bookie
from quire.types import BookieId, EntryId, LedgerId, LedgerState
from quire.values import dataclass

OTHERS: Final = "(no stream)"  # Ledgers that no stream names which was looked at.


@dataclass(frozen=True, slots=True)
class Survey:
    """The facts, the namespace of each stream, and what could not be found out."""

    capacity: Capacity
    namespaces: dict[str, str]
    problems: tuple[str, ...]


async def survey(operations: Operations) -> Survey:
    inventory = await take_inventory(operations)
    spaces = await ask_spaces(operations, inventory)
    garbage = await asyncio.gather(*(garbage_bytes(operations.cluster, each.bookie) for each in spaces))
    with_garbage = tuple(space._replace(garbage_bytes=found or 0) for space, found in zip(spaces, garbage, strict=True))
    problems = [f"bookie {each} did not tell how full it is" for each in _silent(inventory, spaces)]
    problems += [f"how long ledger {each} is by now: {why}" for each, why in inventory.unanswered.items()]
    if not operations.namespaces:
        problems.append("no namespace of streams is known: name one with --uri, or all ledgers count as (no stream)")
    problems += [f"ledger {each} is left out: {why}" for each, why in inventory.damaged.items()]
    return Survey(
        capacity_of(inventory, with_garbage),
        {stream.name: stream.namespace for stream in inventory.streams},
        tuple(problems),
    )


def capacity_of(inventory: Inventory, spaces: tuple[BookieSpace, ...]) -> Capacity:
    segments: dict[LedgerId, tuple[StreamFacts, Segment]] = {
        each.segment.ledger_id: (stream, each.segment)
        for stream in inventory.streams
        for each in stream.segments
        if each.segment is not None
    }
    holdings = tuple(
        _holding(inventory, ledger, *segments.get(ledger, (None, None))) for ledger in sorted(inventory.ledgers)
    )
    purged = frozenset(
        stream.name
        for stream in inventory.streams
        if (kept := [each.segment.lssn for each in stream.segments if each.segment is not None]) and min(kept) > 1
    )
    return Capacity(inventory.now_ms, spaces, holdings, purged)


def _holding(inventory: Inventory, ledger: LedgerId, stream: StreamFacts | None, segment: Segment | None) -> Holding:
    stored = inventory.ledgers[ledger]
    metadata, end = stored.metadata, inventory.ends.get(ledger, LedgerEnd(EntryId(-1), 0))
    ended_ms = None
    if metadata.state is LedgerState.CLOSED:  # When is only known of a segment's ledger. Others count at their begin.
        ended_ms = segment.completion.completed_at_ms if segment and segment.completion else stored.created_ms
    return Holding(
        ledger,
        OTHERS if stream is None else stream.name,
        end.payload_bytes,
        metadata.quorum,
        bytes_by_bookie(metadata, end),
        stored.created_ms,
        ended_ms,
        is_reclaimable=segment is not None and segment.is_truncated,
    )


def _silent(inventory: Inventory, spaces: list[BookieSpace]) -> list[BookieId]:
    told = {space.bookie for space in spaces}
    return sorted(bookie for bookie in inventory.registered | inventory.known if bookie not in told)


# --- What a bookie says of itself


async def admin_url(cluster: Cluster, bookie: BookieId) -> str | None:
    """Where a bookie's admin API is. None if it is down, or has none."""
    try:
        info = await cluster.bookies.service_info(bookie)
    except (NoSuchNode, DamagedMetadata):
        return None
    found = (f"http://{each.host}:{each.port}" for each in info.endpoints if each.protocol == "http")
    return next(found, None)


async def garbage_bytes(cluster: Cluster, bookie: BookieId, *, timeout_s: float = 5.0) -> int | None:
    """What lies on the bookie's disk of ledgers that are deleted, as of its last pass. None if it does not say."""
    url = await admin_url(cluster, bookie)
    if url is None:
        return None
    try:
        status = await asyncio.to_thread(_fetch, f"{url}/api/v1/bookie/status", timeout_s)
        logs = status["details"]["garbage"]["logs"]
        return int(sum(each["log_bytes"] - each["live_bytes"] for each in logs if each["live_bytes"] is not None))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # Another kind of bookie: then nothing is known of its garbage.


def _fetch(url: str, timeout_s: float) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - it begins with http
        status: dict[str, Any] = json.loads(answer.read())
        return status
