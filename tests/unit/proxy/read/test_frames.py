"""Messages made of pieces are the messages they should be."""

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.codec.entry import Entry
from quire.codec.pb import quire_v1_pb2 as pb
from quire.proxy.read.frames import chunk_of, entries_of, fetch_message, progress_frame, run_of, session_frame
from quire.stream.entry_source import Run
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId


def place(lssn: int, entry_id: int) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(0))


def run_from(first: int, payloads: list[bytes], *, is_enveloped: bool = True) -> Run:
    entries = [
        Entry(LedgerId(9), EntryId(first + number), EntryId(-1), 0, payload) for number, payload in enumerate(payloads)
    ]
    size_bytes = sum(map(len, payloads))
    return Run(Lssn(3), is_enveloped, entries, size_bytes, place(3, first + len(payloads)))


@settings(deadline=None)
@given(st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=4), min_size=1, max_size=4), st.booleans())
def test_chunks_that_are_joined_are_one_message(runs: list[list[bytes]], is_enveloped: bool) -> None:
    first, joined = 0, b""
    for payloads in runs:
        run = run_from(first, payloads, is_enveloped=is_enveloped)
        chunk = chunk_of(run, before=place(3, first))
        back = run_of(chunk, chunk.before)
        assert [entry.payload for entry in back.entries] == payloads
        assert (back.lssn, back.is_enveloped, back.after, back.size_bytes) == (
            3,
            is_enveloped,
            run.after,
            run.size_bytes,
        )
        joined += chunk.frame
        first += len(payloads)
    event = pb.ReadEvent.FromString(joined + progress_frame(place(3, first), pb.TAIL))
    assert [entry.data for entry in event.entries] == [payload for payloads in runs for payload in payloads]
    assert [entry.entry_id for entry in event.entries] == list(range(first))
    assert all(entry.is_bare != is_enveloped for entry in event.entries)
    assert (event.progress.position.entry_id, event.progress.mode) == (first, pb.TAIL)


def test_a_reader_inside_a_chunk_gets_its_entries_from_there_on() -> None:
    chunk = chunk_of(run_from(5, [b"5", b"6", b"7"]), before=place(3, 5))
    everything = [b"5", b"6", b"7"]
    for at, left in (
        (place(2, 100), everything),
        (place(3, 5), everything),
        (place(3, 6), [b"6", b"7"]),
        (place(3, 6).next_slot(), [b"6", b"7"]),
        (place(3, 7), [b"7"]),
    ):
        assert [entry.data for entry in entries_of(chunk, at)] == left


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.binary(max_size=1000))
def test_an_event_of_a_session_is_what_protobuf_would_make_of_it(id: int, data: bytes) -> None:
    event = pb.ReadEvent(entries=[pb.Entry(lssn=1, entry_id=2, data=data)])
    made = session_frame(id, event.SerializeToString())
    assert pb.SessionEvent.FromString(made) == pb.SessionEvent(id=id, event=event)


def test_the_answer_to_a_fetch_carries_the_event() -> None:
    event = pb.ReadEvent(end_of_stream=True)
    answer = fetch_message(event.SerializeToString(), place(1, 2))
    assert answer == pb.FetchResponse(event=event, next=pb.Dlsn(lssn=1, entry_id=2))
