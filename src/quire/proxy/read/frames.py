"""What readers are sent, as bytes: chunks of entries are encoded once, and joined for each reader.

A message of protobuf is the sum of its parts: the entries of several chunks, one after the other, are the entries of
one message. That is so for lists only. A single part that comes twice is mixed of both, so where reading goes on is
said once, behind everything.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from quire.codec.entry import Entry
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.records import LogRecord
from quire.protocol.read_windows import Chunk
from quire.rpc.serving.results import dlsn_message
from quire.stream.decoding import Decoder, OnDamage
from quire.stream.entry_source import Run
from quire.types import DLSN, EntryId, LedgerId

_RECORDS: Final = "records"
_END: Final = "end of stream"
_NO_LEDGER: Final = LedgerId(0)  # A frame does not say in which ledger its entries were.


def chunk_of(run: Run, *, before: DLSN) -> Chunk:
    """A run as it is sent, and kept: the entries themselves are in the frame and nowhere else."""
    event, is_bare = pb.ReadEvent(), not run.is_enveloped
    add = event.entries.add
    for entry in run.entries:
        add(lssn=run.lssn, entry_id=entry.entry_id, is_bare=is_bare, data=entry.payload)
    return Chunk(
        before=before,
        after=run.after,
        lssn=run.lssn,
        frame=event.SerializeToString(),
        entries=len(run.entries),
        is_enveloped=run.is_enveloped,
    )


def entries_of(chunk: Chunk, place: DLSN) -> list[pb.Entry]:
    """The entries of a chunk from `place` on: the one that has it, and those behind."""
    first = place[:2]
    return [entry for entry in pb.ReadEvent.FromString(chunk.frame).entries if (entry.lssn, entry.entry_id) >= first]


def run_of(chunk: Chunk, place: DLSN) -> Run:
    """What a chunk was made of, from `place` on."""
    entries = [
        Entry(_NO_LEDGER, EntryId(entry.entry_id), EntryId(-1), 0, entry.data) for entry in entries_of(chunk, place)
    ]
    return Run(chunk.lssn, chunk.is_enveloped, entries, sum(len(entry.payload) for entry in entries), chunk.after)


class SharedRecords:
    """The records of chunks, decoded once for all readers that want them so."""

    def __init__(self, on_damage: OnDamage) -> None:
        """`on_damage` is told of each entry that cannot be decoded, and says whether to go on without it; or raises."""
        self.on_damage = on_damage

    def frame(self, chunk: Chunk) -> tuple[bytes, bool]:
        """All records of a chunk, and whether the stream ends with them."""
        made = chunk.made.get(_RECORDS)
        if made is None:
            decoder = Decoder(start=chunk.before, txid_min=None, expand_sets=True, on_damage=self.on_damage)
            made = records_frame(decoder.records(run_of(chunk, chunk.before)))
            chunk.keep(_RECORDS, made)
            if decoder.end_of_stream is not None:
                chunk.keep(_END, b"")
        return made, _END in chunk.made


def records_frame(records: Sequence[LogRecord]) -> bytes:
    event = pb.ReadEvent()
    add = event.records.add
    for lssn, entry_id, slot_id, txid, payload, _, flags in records:
        add(dlsn=pb.Dlsn(lssn=lssn, entry_id=entry_id, slot_id=slot_id), txid=txid, payload=payload, flags=flags)
    return event.SerializeToString()


@lru_cache(maxsize=256)  # Readers of one lane are at the same few places.
def progress_frame(place: DLSN, mode: pb.ReadMode) -> bytes:
    progress = pb.Progress(position=dlsn_message(place), mode=mode)
    return pb.ReadEvent(progress=progress).SerializeToString()


def gap_message(begin: DLSN, end: DLSN) -> pb.Gap:
    return pb.Gap(to=dlsn_message(end), **{"from": dlsn_message(begin)})  # A word of Python's.


def session_frame(id: int, event: bytes) -> bytes:
    """A `SessionEvent` around an event that is encoded already."""
    return pb.SessionEvent(id=id).SerializeToString() + b"\x12" + _varint(len(event)) + event


def fetch_message(event: bytes, next: DLSN) -> pb.FetchResponse:
    return pb.FetchResponse(event=pb.ReadEvent.FromString(event), next=dlsn_message(next))


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)
