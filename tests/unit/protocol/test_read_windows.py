"""Windows, pools and lanes of a read proxy against models that are too simple to be wrong."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import InvariantBroken
from quire.protocol.read_windows import OVERHEAD_BYTES, Account, Chunk, Window
from quire.types import DLSN, EntryId, Lssn, SlotId


def place(lssn: int, entry_id: int, slot_id: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


def chunk(window: Window, entries: int, *, frame: bytes = b"x" * 10) -> Chunk:
    """The next `entries` of a window; with none the end of its segment."""
    before = window.end
    after = before.next_segment() if entries == 0 else place(before.lssn, before.entry_id + entries)
    return Chunk(before=before, after=after, lssn=before.lssn, frame=frame if entries else b"", entries=entries)


@dataclass
class Model:
    """All chunks in a list, and nothing clever."""

    chunks: list[Chunk] = field(default_factory=list)

    def at(self, where: DLSN) -> list[Chunk]:
        return [each for each in self.chunks if each.after > where]


@settings(deadline=None)  # A busy machine is no fault of a window.
@given(st.data())
def test_a_window_gives_what_is_at_a_place_and_behind_it(data: st.DataObject) -> None:
    window, model, account = Window(place(1, 0)), Model(), Account()
    window.charge(account)
    for now_s in range(data.draw(st.integers(1, 60))):
        if data.draw(st.booleans()) or not model.chunks:
            added = chunk(window, data.draw(st.integers(0, 3)), frame=b"x" * data.draw(st.integers(1, 50)))
            window.append(added, now_s=now_s)
            model.chunks.append(added)
        elif data.draw(st.booleans()):
            assert window.drop_oldest() is model.chunks.pop(0)
        else:
            data.draw(st.sampled_from(model.chunks)).keep("made", b"m" * data.draw(st.integers(0, 20)))
        assert len(window) == len(model.chunks)
        assert window.bytes == account.bytes == sum(each.size_bytes for each in model.chunks)
        if model.chunks:
            assert (window.begin, window.end) == (model.chunks[0].before, model.chunks[-1].after)
            where = data.draw(st.sampled_from(model.chunks)).before.next_slot()
        else:
            where = window.end
        behind = model.at(where)
        assert window.covers(where)
        assert window.chunks_from(where, 1 << 30) == behind
        assert window.bytes_from(where) == sum(len(each.frame) for each in behind)
        assert window.entries_from(where, 1 << 30) == sum(each.entries for each in behind)
        limit = data.draw(st.integers(0, 200))
        some = window.chunks_from(where, limit)
        assert some == behind[: len(some)]
        assert len(some) >= min(1, len(behind)), "one is given however large it is"
        assert len(some) <= 1 or sum(len(each.frame) for each in some) <= limit


def test_a_window_has_no_gaps() -> None:
    window = Window(place(1, 0))
    with pytest.raises(InvariantBroken, match="no gaps"):
        window.append(Chunk(before=place(1, 1), after=place(1, 2), lssn=Lssn(1), frame=b"", entries=1), now_s=0.0)
    with pytest.raises(InvariantBroken, match="nothing to drop"):
        window.drop_oldest()
    with pytest.raises(InvariantBroken, match="stands for nothing"):
        Chunk(before=place(1, 1), after=place(1, 1), lssn=Lssn(1), frame=b"", entries=0)


def test_places_outside_are_not_covered() -> None:
    window = Window(place(2, 5))
    window.append(chunk(window, 2), now_s=0.0)
    assert window.covers(place(2, 5))
    assert window.covers(place(2, 6, 3))
    assert window.covers(place(2, 7)), "who is at the end waits there"
    assert not window.covers(place(2, 4, 9))
    assert not window.covers(place(2, 7, 1))
    assert not window.covers(place(1, 5))


def test_what_is_made_of_a_chunk_counts_as_long_as_it_is_kept() -> None:
    window, account = Window(place(1, 0)), Account()
    window.charge(account)
    first, second = chunk(window, 1), None
    window.append(first, now_s=0.0)
    second = chunk(window, 1)
    window.append(second, now_s=0.0)
    first.keep("records", b"r" * 100)
    assert account.bytes == 2 * (OVERHEAD_BYTES + 10) + 100
    window.drop_oldest()
    first.keep("again", b"r" * 100)  # By a reader that still has it in its hands.
    assert account.bytes == window.bytes == OVERHEAD_BYTES + 10
    other = Account()
    window.charge(other)
    assert (account.bytes, other.bytes) == (0, OVERHEAD_BYTES + 10)


def test_a_window_stays_right_when_many_chunks_have_gone() -> None:
    window = Window(place(1, 0))
    for number in range(1000):
        window.append(chunk(window, 1), now_s=number)
        if number >= 3:
            window.drop_oldest()
        assert window.chunks_from(window.begin, 1 << 30)[0].before == window.begin
        assert window.bytes_from(window.begin) == 10 * len(window)
    assert len(window._chunks) < 300, "what went is cut off"
