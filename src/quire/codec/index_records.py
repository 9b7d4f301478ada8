"""What the bookie's index holds, as keys and values of an ordered store.

    key                                     value
    00                                      "quire index 1": what this is, and in which format
    01 ledger id (8) entry id (8)           location (8)
    02 ledger id (8)                        flags (1) length of the master key (4) master key, explicit LAC if any
    03 ledger id (8)                        when the tombstone expires, in ms since 1970 (8)
    04 name in UTF-8                        the bytes of a mark

Numbers are unsigned, most significant byte first: the order of keys is the order of kinds, ledgers and entries, so the
entries of a ledger lie side by side and the last one is one step before the next ledger. Ids and locations stay below
2^63, since Java counts with signs; so the entry id 2^63 is free to mean the end of a ledger.

The store behind the index checks its blocks itself. What is checked here is whether a value can mean anything.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from struct import Struct
from typing import Final, NoReturn

from quire.codec.damage import check_text
from quire.codec.entry_log import Location
from quire.errors import DamagedIndex, InvalidArgument
from quire.types import EntryId, LedgerId
from quire.values import dataclass

FORMAT_KEY: Final = b"\x00"
FORMAT_VALUE: Final = b"quire index 1"
LEDGERS: Final = (b"\x02", b"\x03")  # All keys of a kind: from the first bytes, up to and without the second.
TOMBSTONES: Final = (b"\x03", b"\x04")

_LOCATION: Final = 1
_LEDGER: Final = 2
_TOMBSTONE: Final = 3
_MARK: Final = b"\x04"

_FENCED: Final = 1
_LIMBO: Final = 2
_EXPLICIT_LAC: Final = 4

_END: Final = 2**63  # One above every id.
_FIRST: Final = EntryId(0)
_NAME_BYTES_MAX: Final = 255

_ENTRY_KEY = Struct(">BQQ")
_LEDGER_KEY = Struct(">BQ")
_NUMBER = Struct(">Q")
_LEDGER_HEADER = Struct(">BI")
_ENTRY_ID = Struct(">9xQ")  # The entry id within a location's key.


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """What a bookie knows of one ledger, besides its entries.

    `explicit_lac` is the packet as the writer sent it. `limbo` says that entries may be missing here without anybody
    knowing which, so the bookie must not claim that an entry does not exist.
    """

    master_key: bytes = field(repr=False)  # Kept out of logs and error messages.
    fenced: bool = False
    explicit_lac: bytes | None = None
    limbo: bool = False


# --- Locations


def location_key(ledger_id: LedgerId, entry_id: EntryId) -> bytes:
    if (ledger_id | entry_id) >> 63:  # One test for both: too large, or negative.
        _out_of_range(ledger_id, entry_id)
    return _ENTRY_KEY.pack(_LOCATION, ledger_id, entry_id)


def location_items(entries: Iterable[tuple[LedgerId, EntryId, Location]]) -> Iterator[tuple[bytes, bytes]]:
    """Key and value for each ledger id, entry id and location."""
    pack_key, pack_value = _ENTRY_KEY.pack, _NUMBER.pack
    for ledger_id, entry_id, location in entries:
        if (ledger_id | entry_id | location) >> 63:
            _out_of_range(ledger_id, entry_id, location)
        yield pack_key(_LOCATION, ledger_id, entry_id), pack_value(location)


def location_bounds(ledger_id: LedgerId, first: EntryId = _FIRST, last: EntryId | None = None) -> tuple[bytes, bytes]:
    """The keys of a ledger's entries from `first` to `last`, both included; None is the end. The upper key is not."""
    if (ledger_id | first | (last or 0)) >> 63:
        _out_of_range(ledger_id, first, last)
    end = _END if last is None else last + 1
    return _ENTRY_KEY.pack(_LOCATION, ledger_id, first), _ENTRY_KEY.pack(_LOCATION, ledger_id, end)


def entry_id_of(key: bytes) -> EntryId:
    """Of a location's key. Raises `DamagedIndex`."""
    if len(key) != _ENTRY_KEY.size:
        raise DamagedIndex(f"a location's key has {_ENTRY_KEY.size} bytes, not {len(key)}")
    return EntryId(_ENTRY_ID.unpack(key)[0])


def entry_ids_of(keys: Sequence[bytes]) -> Iterator[EntryId]:
    """The same for many keys at once."""
    joined = b"".join(keys)
    if len(joined) != len(keys) * _ENTRY_KEY.size:
        raise DamagedIndex(f"{len(keys)} keys of locations have {len(joined)} bytes")
    for (entry_id,) in _ENTRY_ID.iter_unpack(joined):
        yield entry_id


def decode_location(value: bytes) -> Location:
    """Raises `DamagedIndex`."""
    return Location(_number(value, "a location"))


# --- Ledgers


def ledger_key(ledger_id: LedgerId) -> bytes:
    if ledger_id >> 63:
        _out_of_range(ledger_id)
    return _LEDGER_KEY.pack(_LEDGER, ledger_id)


def ledger_id_of(key: bytes) -> LedgerId:
    """Of the key of a ledger or of a tombstone. Raises `DamagedIndex`."""
    if len(key) != _LEDGER_KEY.size:
        raise DamagedIndex(f"a ledger's key has {_LEDGER_KEY.size} bytes, not {len(key)}")
    return LedgerId(_LEDGER_KEY.unpack(key)[1])


def encode_ledger(record: LedgerRecord) -> bytes:
    flags = (_FENCED if record.fenced else 0) | (_LIMBO if record.limbo else 0)
    if record.explicit_lac is not None:
        flags |= _EXPLICIT_LAC
    return _LEDGER_HEADER.pack(flags, len(record.master_key)) + record.master_key + (record.explicit_lac or b"")


def decode_ledger(value: bytes) -> LedgerRecord:
    """Raises `DamagedIndex`."""
    start = _LEDGER_HEADER.size
    if len(value) < start:
        raise DamagedIndex(f"a ledger's record has {start} bytes or more, not {len(value)}")
    flags, key_bytes = _LEDGER_HEADER.unpack_from(value)
    end = start + key_bytes
    if flags & ~(_FENCED | _LIMBO | _EXPLICIT_LAC):
        raise DamagedIndex(f"a ledger's record has the flags {flags:#x}, not all of which exist")
    has_lac = bool(flags & _EXPLICIT_LAC)
    if len(value) < end or (len(value) > end and not has_lac):
        raise DamagedIndex(f"a ledger's record of {len(value)} bytes does not fit a master key of {key_bytes}")
    return LedgerRecord(
        master_key=value[start:end],
        fenced=bool(flags & _FENCED),
        explicit_lac=value[end:] if has_lac else None,
        limbo=bool(flags & _LIMBO),
    )


# --- Tombstones and marks


def tombstone_key(ledger_id: LedgerId) -> bytes:
    if ledger_id >> 63:
        _out_of_range(ledger_id)
    return _LEDGER_KEY.pack(_TOMBSTONE, ledger_id)


def encode_tombstone(expires_ms: int) -> bytes:
    if expires_ms >> 63:
        raise InvalidArgument(f"a tombstone cannot expire at {expires_ms} ms", expires_ms=expires_ms)
    return _NUMBER.pack(expires_ms)


def decode_tombstone(value: bytes) -> int:
    """Raises `DamagedIndex`."""
    return _number(value, "a tombstone")


def mark_key(name: str) -> bytes:
    check_text(name)
    encoded = name.encode()
    if not 0 < len(encoded) <= _NAME_BYTES_MAX:
        raise InvalidArgument(f"a mark's name has 1 to {_NAME_BYTES_MAX} bytes, not {len(encoded)}")
    return _MARK + encoded


def _number(value: bytes, what: str) -> int:
    if len(value) != _NUMBER.size:
        raise DamagedIndex(f"{what} has {_NUMBER.size} bytes, not {len(value)}")
    number: int = _NUMBER.unpack(value)[0]
    if number >= _END:
        raise DamagedIndex(f"{what} cannot be {number}")
    return number


def _out_of_range(ledger_id: LedgerId, *others: int | None) -> NoReturn:
    numbers = ", ".join(str(number) for number in (ledger_id, *others) if number is not None)
    raise InvalidArgument(
        f"ids and locations run from 0 to {_END - 1}; one of these does not: {numbers}", ledger_id=ledger_id
    )
