"""Entries out of rows: what a ledger would have held, made from what a file in cold storage holds.

Readers, and read proxies, know nothing but entries of records. So the records of a row group become entries again, each
record at the entry and slot that it had. What applications never saw is not in the file: where a control record was
there is an empty one now, so that the slots behind it are the same, and entries of such records only are left out.

The members of a record set come one by one, also to readers that leave sets whole; unless it was a compressed one that
needs more room without its compression than an entry has. Such a set comes as a set: whoever passes entries on, as read
proxies do, counts on no more than an entry's room for each.
"""

from bisect import bisect_left
from typing import Final

from quire.codec.entry import Entry
from quire.codec.stream.compression import Compression
from quire.codec.stream.entries import encode_entry
from quire.codec.stream.limits import RECORDS_BYTES_MAX
from quire.codec.stream.record_sets import encode_record_set
from quire.codec.stream.records import RECORD_SET, encode_control, encode_record, encode_records
from quire.cold.parquet_reader import Group
from quire.cold.parquet_rows import Rows
from quire.errors import InvalidArgument
from quire.types import EntryId, LedgerId

FILLER: Final = b""  # What stands in a control record that was not archived.


def entries_of(rows: Rows, group: Group, *, first: EntryId, ledger: LedgerId) -> list[Entry]:
    """The entries of a row group, from entry `first` on, bare of envelopes. They seem to be of `ledger`, in which they
    were: so those of another stream of the same name, which has other ledgers, can be told from them.
    """
    ids, found = rows.entries, []
    begin = bisect_left(ids, first)
    while begin < len(ids):
        end = bisect_left(ids, ids[begin] + 1, lo=begin)
        runs = _fitting_runs(rows, begin, end, first_position=group.first_row + begin + 1)
        entry_id = EntryId(ids[begin])
        found.append(Entry(ledger, entry_id, entry_id, 0, b"".join(runs)))
        begin = end
    return found


def _fitting_runs(rows: Rows, begin: int, end: int, *, first_position: int) -> list[bytes]:
    """The records of one entry: single ones, or sets if they would need more room than an entry has. Only members of
    compressed sets do; as sets they need what they needed before.
    """
    payload_bytes = sum(map(len, rows.payloads[begin:end]))
    if payload_bytes <= RECORDS_BYTES_MAX:
        runs = _runs(rows, begin, end, first_position=first_position)
        if sum(map(len, runs)) <= RECORDS_BYTES_MAX:
            return runs
    return _sets(rows, begin, end, first_position=first_position)


def _runs(rows: Rows, begin: int, end: int, *, first_position: int) -> list[bytes]:
    """The records of one entry, with something in each slot that has none."""
    runs: list[bytes] = []
    slots, slot, at = rows.slots, 0, begin
    while at < end:
        position = first_position + at - begin
        while slot < slots[at]:
            runs.append(encode_control(txid=rows.txids[at], position=position - 1, payload=FILLER))
            slot += 1
        stop = at + 1
        while stop < end and slots[stop] == slots[stop - 1] + 1:
            stop += 1
        runs += _encoded(rows.payloads[at:stop], rows.txids[at:stop], position)
        slot, at = slot + stop - at, stop
    return runs


def _encoded(payloads: list[bytes], txids: list[int], position: int) -> list[bytes]:
    if min(txids) >= 0:
        return [encode_records(payloads, txids, position=position)]
    return [  # Other programs may have written such.
        encode_record(payload, txid=txid, position=position + place)
        for place, (payload, txid) in enumerate(zip(payloads, txids, strict=True))
    ]


# --- For a ledger


def restored_entry(rows: Rows, begin: int, end: int, *, first_position: int, enveloped: bool) -> bytes:
    """One entry, as it may be written to a ledger. Raises `InvalidArgument` if it does not fit into one."""
    runs = _fitting_runs(rows, begin, end, first_position=first_position)
    return encode_entry(runs) if enveloped else b"".join(runs)


def filler_entry(*, txid: int, position: int, enveloped: bool) -> bytes:
    """An entry that had no record that applications see."""
    runs = [encode_control(txid=txid, position=position, payload=FILLER)]
    return encode_entry(runs) if enveloped else b"".join(runs)


def _sets(rows: Rows, begin: int, end: int, *, first_position: int) -> list[bytes]:
    """The same records as sets of those that follow each other and have the same txid."""
    runs: list[bytes] = []
    slot, at = 0, begin
    while at < end:
        position = first_position + at - begin
        while slot < rows.slots[at]:
            runs.append(encode_control(txid=rows.txids[at], position=position - 1, payload=FILLER))
            slot += 1
        stop = at + 1
        while stop < end and rows.slots[stop] == rows.slots[stop - 1] + 1 and rows.txids[stop] == rows.txids[at]:
            stop += 1
        runs += _encoded_sets(rows.payloads[at:stop], rows.txids[at], position)
        slot, at = slot + stop - at, stop
    return runs


def _encoded_sets(payloads: list[bytes], txid: int, position: int) -> list[bytes]:
    """One set, or several if they were more than one before and do not fit into it."""
    try:
        members = encode_record_set(payloads, compression=Compression.LZ4)
    except InvalidArgument:
        half = len(payloads) // 2
        if not half:
            raise
        return _encoded_sets(payloads[:half], txid, position) + _encoded_sets(payloads[half:], txid, position + half)
    return [encode_record(members, txid=txid, position=position, flags=RECORD_SET)]
