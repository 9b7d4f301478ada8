"""Entries of a stream that cannot be read, named by their place in it."""

from collections.abc import Mapping

from quire.errors import DamagedEntry, QuireError
from quire.ledger.damage import IS_LOST, is_lost
from quire.telemetry.events import logger
from quire.types import DLSN, Lssn, SlotId

_log = logger("stream")


def place_of(stream: str, lssn: Lssn) -> Mapping[str, object]:
    """What is told of a segment's ledger where one of its copies is bad: with the entry's id that is a DLSN."""
    return {"stream": stream, "lssn": lssn}


def unreadable(stream: str, place: DLSN, error: QuireError) -> DamagedEntry:
    """What to raise for the entry at `place`, of which `error` tells what is wrong."""
    at = _exact(place, error)
    damaged = DamagedEntry(
        f"entry {at.entry_id} of segment {at.lssn} of stream {stream!r} cannot be read: {error}",
        hint="Open the reader with `skip_damaged` to go on without it."
        if is_lost(error)
        else "Bring back the bookies that have other copies of it, or open the reader with `skip_damaged`.",
        stream=stream,
        position=at,
        lssn=at.lssn,
        entry_id=at.entry_id,
        slot_id=at.slot_id,
        **({IS_LOST: True} if is_lost(error) else {}),
    )
    damaged.__cause__ = error
    return damaged


def report_skipped(stream: str, place: DLSN, error: QuireError) -> None:
    """Nobody will see the entry: that must not go unnoticed."""
    lssn, entry_id, slot_id = _exact(place, error)
    _log.warning("stream.entry_skipped", stream=stream, lssn=lssn, entry_id=entry_id, slot_id=slot_id, error=str(error))


def _exact(place: DLSN, error: QuireError) -> DLSN:
    """With the slot of the record that is damaged, where that is known."""
    slot_id = error.facts.get("slot_id")
    return DLSN(place.lssn, place.entry_id, SlotId(slot_id)) if isinstance(slot_id, int) else place
