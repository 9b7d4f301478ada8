"""`quire bookie decommission` and `drain`: let a bookie go without losing a copy.

A live bookie is drained first: it takes no more entries, serves what it has, and writers move on by themselves. Once it
is stopped, everything that it held is copied from the other bookies, and when no ledger names it any more its cookie is
deleted. Until then its disk is worth keeping: the cookie stays, and the command may be run again at any time.

Invariant: the cookie of a bookie goes only when the metadata of all ledgers was read, after the last copy, and none
names it; or when an operator forces it, and has been told which ledgers do. Metadata that cannot be read may name it.
"""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Final

from quire.app.capacity import admin_url
from quire.app.inventory import Inventory, Operations, take_inventory
from quire.app.repairing import Repaired, marks_of, repair_ledgers, what_blocks
from quire.errors import BookieRegistered, BookieUnavailable, InvalidArgument, NoSuchNode, Refused
from quire.protocol.repair import abandoned
from quire.protocol.shares import LedgerEnd, bytes_by_bookie
from quire.types import NO_ENTRY, BookieId, LedgerId
from quire.values import dataclass

DEFAULT_BYTES_PER_S: Final = 16 << 20
_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Held:
    """One ledger that names the bookie, or may do so: about how much of it is there, and what keeps it from being
    copied."""

    ledger_id: LedgerId
    bytes: int
    is_open: bool
    """It is not closed, and the bookie is among those that its writer writes to."""

    blocked: str | None = None


@dataclass(frozen=True, slots=True)
class Decommissioned:
    """What came of it."""

    bookie: BookieId
    copied: int
    """Ledgers that name others instead by now."""

    left: tuple[Held, ...]
    cookie_deleted: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is."""

    ledgers: int
    ledgers_left: int
    bytes_left: int
    seconds_left: float | None
    """As fast as it went so far. None before anything was copied."""


async def held_by(operations: Operations, bookie: BookieId) -> list[Held]:
    """The ledgers that name a bookie, and those of which nobody can tell. Raises `InvalidArgument` if the cluster has
    never heard of it."""
    inventory = await take_inventory(operations, with_lengths=False)
    found = _held(inventory, bookie)
    if not found and bookie not in inventory.known | inventory.registered:
        raise InvalidArgument(
            f"this cluster knows no bookie {bookie!r}", hint="`quire bookie status` lists those it knows."
        )
    unread = [
        Held(ledger, 0, False, f"its metadata cannot be read: {why}") for ledger, why in inventory.damaged.items()
    ]
    return sorted(found + unread, key=lambda each: each.ledger_id)


def _held(inventory: Inventory, bookie: BookieId) -> list[Held]:
    found = []
    for ledger, stored in sorted(inventory.ledgers.items()):
        metadata = stored.metadata
        if any(bookie in fragment.bookies for fragment in metadata.fragments):
            end = inventory.ends.get(ledger, LedgerEnd(NO_ENTRY, 0))
            is_open = ledger not in inventory.ends and bookie in metadata.fragments[-1].bookies
            found.append(Held(ledger, bytes_by_bookie(metadata, end).get(bookie, 0), is_open))
    return found


async def decommission(
    operations: Operations,
    bookie: BookieId,
    *,
    force: bool = False,
    bytes_per_s: float = DEFAULT_BYTES_PER_S,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Decommissioned:
    """Copy all that a bookie held from the others, and forget it. With `force` it is forgotten in any case.

    Raises `BookieRegistered` while the bookie lives, `InvalidArgument` for one that nobody knows, `Refused` while
    autorecovery is switched off.
    """
    listing = await operations.cluster.bookies.listing()
    if bookie in listing.writable | listing.readonly:
        raise BookieRegistered(
            f"bookie {bookie} is alive",
            hint=f"Drain it with `quire bookie drain {bookie}`, stop its process, and run this command again.",
            bookie_id=bookie,
        )
    if not await marks_of(operations).is_enabled():
        raise Refused(
            "autorecovery is switched off for this cluster, so nothing would be copied",
            hint="Switch it on with `quire autorecovery enable`, and run this command again.",
        )
    before = await held_by(operations, bookie)
    watch = _Watch(operations, before, on_progress)
    why: dict[LedgerId, str] = {}

    def on_repaired(repaired: Repaired) -> None:
        watch.on_repaired(repaired)
        if not repaired.is_whole:
            why[repaired.ledger_id] = repaired.told

    missing = {each.ledger_id: (bookie,) for each in before if each.blocked is None}
    if missing:
        await repair_ledgers(
            operations, missing, bytes_per_s=bytes_per_s, on_repaired=on_repaired, on_bytes=watch.on_bytes
        )
    left = await held_by(operations, bookie) if before else []
    told = [
        Held(
            each.ledger_id,
            each.bytes,
            each.is_open,
            each.blocked or why.get(each.ledger_id) or await what_blocks(operations, each.ledger_id),
        )
        for each in left
    ]
    deleted = (not left or force) and await _delete_cookie(operations, bookie)
    copied = {each.ledger_id for each in before} - {each.ledger_id for each in left}
    return Decommissioned(bookie, len(copied), tuple(told), deleted)


async def _delete_cookie(operations: Operations, bookie: BookieId) -> bool:
    bookies = operations.cluster.bookies
    listing = await bookies.listing()
    if bookie in listing.writable | listing.readonly:
        raise BookieRegistered(
            f"bookie {bookie} came back meanwhile: its cookie stays", hint="Stop it first.", bookie_id=bookie
        )
    stored = await bookies.cookie(bookie)
    if stored is None:
        return False
    try:
        await bookies.delete_cookie(bookie, expected=stored.version)
    except NoSuchNode:
        return False
    return True


class _Watch:
    """Counts what is done, and says how long the rest will take."""

    def __init__(self, operations: Operations, held: list[Held], on_progress: Callable[[Progress], None]) -> None:
        self._clock, self._on_progress = operations.runtime.clock, on_progress
        self._sizes = {each.ledger_id: each.bytes for each in held}
        self._total, self._ledgers = sum(self._sizes.values()), len(held)
        self._began_s, self._copied = self._clock.monotonic(), 0

    def on_bytes(self, copied: int) -> None:
        self._copied = copied
        self._tell()

    def on_repaired(self, repaired: Repaired) -> None:
        if repaired.is_whole:
            self._sizes.pop(repaired.ledger_id, None)
        self._tell()

    def _tell(self) -> None:
        left = max(0, min(sum(self._sizes.values()), self._total - self._copied))
        rate = self._copied / max(self._clock.monotonic() - self._began_s, 1e-9)
        self._on_progress(Progress(self._ledgers, len(self._sizes), left, left / rate if rate else None))


# --- Draining


@dataclass(frozen=True, slots=True)
class Drained:
    """A bookie that takes no more entries, or does again."""

    bookie: BookieId
    is_readonly: bool
    ledgers_open: tuple[LedgerId, ...]
    """Ledgers whose writers have not moved on yet."""


async def set_drained(operations: Operations, bookie: BookieId, drained: bool) -> Drained:
    """Have a live bookie take no more entries, through its admin API, until it is taken back; restarts included.

    Raises `BookieUnavailable` if it is down or has no admin API, and if it does not do as it is told in time.
    """
    url = await admin_url(operations.cluster, bookie)
    if url is None:
        raise BookieUnavailable(
            f"bookie {bookie} is down, or has no admin API",
            hint="A bookie that is down needs no draining. Give a live one an admin API: --admin HOST:PORT.",
            bookie=bookie,
        )
    try:
        await asyncio.to_thread(
            _put, f"{url}/api/v1/bookie/state/readonly", {"readOnly": drained}, operations.timeout_s
        )
    except (OSError, ValueError) as error:
        raise BookieUnavailable(f"bookie {bookie} did not do it: {error}", bookie=bookie) from error
    is_readonly = await _wait_listed(operations, bookie, drained)
    inventory = await take_inventory(operations, with_lengths=False)
    still = [
        ledger
        for ledger, stored in inventory.ledgers.items()
        if drained and bookie in abandoned(stored.metadata, inventory.writable)
    ]
    return Drained(bookie, is_readonly, tuple(sorted(still)))


async def _wait_listed(operations: Operations, bookie: BookieId, drained: bool) -> bool:
    """Whether it is listed as read-only in the end. One with a full disk stays so, whatever an operator says."""
    clock, bookies = operations.runtime.clock, operations.cluster.bookies
    end_s = clock.monotonic() + min(5.0, operations.timeout_s)
    while True:
        is_readonly = bookie in (await bookies.listing()).readonly
        if is_readonly is drained or clock.monotonic() > end_s:
            return is_readonly
        await clock.sleep(_LOOK_S)


def _put(url: str, body: dict[str, Any], timeout_s: float) -> None:
    request = urllib.request.Request(  # noqa: S310 - it begins with http
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="PUT"
    )
    with urllib.request.urlopen(request, timeout=timeout_s):  # noqa: S310
        return
