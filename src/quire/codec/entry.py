"""Entries as they are sent and stored, and the packet that carries an explicit LAC.

    entry          ledger id (8) entry id (8) LAC (8) length (8) digest (0, 4, 8 or 20) payload
    LAC packet     ledger id (8) LAC (8) digest

Numbers are signed, most significant byte first. The LAC is what the writer knew to be confirmed when it sent the entry,
-1 for nothing yet. The length counts the payload bytes of the ledger up to here, this entry's included. An entry's
digest covers the 32 bytes before it and the payload after it, a packet's the 16 bytes before it.

Clients verify, bookies do not: a bookie stores an entry as it came and looks at its first 24 bytes only. Replicas of
one entry need not be equal: recovery sends an entry anew with the LAC of its own time, and so with another digest.
"""

import struct
from hmac import compare_digest
from struct import Struct
from typing import Final, NamedTuple, NoReturn

from quire.codec.digest import Buffer, Digest
from quire.errors import DamagedEntry, InvalidArgument
from quire.types import EntryId, LedgerId

HEADER_BYTES: Final = 32
STORABLE_BYTES_MIN: Final = 24  # Without ids and LAC a bookie cannot store an entry.
LAC_HEADER_BYTES: Final = 16

_HEADER = Struct(">qqqq")
_STORABLE = Struct(">qqq")
_LAC_HEADER = Struct(">qq")
_new_entry = tuple.__new__  # Half of what `Entry(…)` costs, and readers make one for each entry.


class Entry(NamedTuple):
    """An entry that passed its digest. A tuple, since readers make one for each entry."""

    ledger_id: LedgerId
    entry_id: EntryId
    lac: EntryId
    length: int
    payload: bytes


class EntryCodec:
    """The entries of one ledger, for its clients."""

    def __init__(self, ledger_id: LedgerId, digest: Digest) -> None:
        self.ledger_id = ledger_id
        self.prefix_bytes = HEADER_BYTES + digest.size
        self.digest = digest

    def prefix(self, entry_id: EntryId, *parts: Buffer, lac: EntryId, length: int) -> bytes:
        """What goes before the payload `parts`: header and digest. The parts themselves are not copied into it."""
        try:
            header = _HEADER.pack(self.ledger_id, entry_id, lac, length)
        except struct.error as error:
            raise InvalidArgument(
                f"entry {entry_id} with LAC {lac} and length {length} does not fit into 64 bits a number"
            ) from error
        return header + self.digest.of(header, *parts)

    def decode(self, data: Buffer, *, entry_id: EntryId | None) -> Entry:
        """The entry that a bookie sent for `entry_id`. None takes any: whoever asks for the last one cannot know it.

        Raises `DamagedEntry`.
        """
        prefix_bytes = self.prefix_bytes
        if len(data) < prefix_bytes:
            raise self._damaged(entry_id, f"has {len(data)} bytes, {prefix_bytes} is the least")
        prefix = bytes(data[:prefix_bytes])
        header = prefix[:HEADER_BYTES]
        payload = bytes(data[prefix_bytes:])  # The one copy: readers own it, and the checksum library needs bytes.
        if not compare_digest(self.digest.of(header, payload), prefix[HEADER_BYTES:]):
            raise self._damaged(entry_id, "does not match its digest")
        found_ledger, found_entry, lac, length = _HEADER.unpack(header)
        if found_ledger != self.ledger_id or (entry_id is not None and found_entry != entry_id):
            raise self._damaged(entry_id, f"turned out to be entry {found_entry} of ledger {found_ledger}")
        return _new_entry(Entry, (found_ledger, found_entry, lac, length, payload))

    def encode_lac(self, lac: EntryId) -> bytes:
        """The packet that tells bookies of `lac`."""
        try:
            header = _LAC_HEADER.pack(self.ledger_id, lac)
        except struct.error as error:
            raise InvalidArgument(f"LAC {lac} does not fit into 64 bits") from error
        return header + self.digest.of(header)

    def decode_lac(self, data: Buffer) -> EntryId:
        """The LAC in a packet that a bookie kept. Raises `DamagedEntry`."""
        view = memoryview(data)
        packet_bytes = LAC_HEADER_BYTES + self.digest.size
        if len(view) < packet_bytes:
            raise self._damaged_lac(f"has {len(view)} bytes, {packet_bytes} is the least")
        header = bytes(view[:LAC_HEADER_BYTES])
        if not compare_digest(self.digest.of(header), view[LAC_HEADER_BYTES:packet_bytes]):
            raise self._damaged_lac("does not match its digest")
        found_ledger, lac = _LAC_HEADER.unpack(header)
        if found_ledger != self.ledger_id:
            raise self._damaged_lac(f"is one of ledger {found_ledger}")
        return EntryId(lac)

    def _damaged(self, entry_id: EntryId | None, problem: str) -> DamagedEntry:
        which = "the last entry" if entry_id is None else f"entry {entry_id}"
        return DamagedEntry(
            f"{which} of ledger {self.ledger_id} {problem}", ledger_id=self.ledger_id, entry_id=entry_id
        )

    def _damaged_lac(self, problem: str) -> DamagedEntry:
        return DamagedEntry(f"the explicit LAC of ledger {self.ledger_id} {problem}", ledger_id=self.ledger_id)


# --- For bookies: nothing is verified


def stored_ids(entry: Buffer) -> tuple[LedgerId, EntryId, EntryId]:
    """Ledger id, entry id and LAC, as a bookie reads them from an entry. Raises `DamagedEntry` below 24 bytes."""
    try:
        return _STORABLE.unpack_from(entry)
    except struct.error:
        _too_short("an entry", entry, STORABLE_BYTES_MIN)


def stored_lac(packet: Buffer) -> tuple[LedgerId, EntryId]:
    """Ledger id and LAC, as a bookie reads them from a LAC packet. Raises `DamagedEntry` below 16 bytes."""
    try:
        return _LAC_HEADER.unpack_from(packet)
    except struct.error:
        _too_short("a LAC packet", packet, LAC_HEADER_BYTES)


def _too_short(what: str, data: Buffer, bytes_min: int) -> NoReturn:
    raise DamagedEntry(f"{what} of {len(data)} bytes cannot be stored, {bytes_min} is the least") from None
