"""Segments of every version, with nothing set that the version does not store."""

from hypothesis import strategies as st
from tests.support.strategies import INT64, LEDGER_IDS

from quire.codec.stream_metadata.segment import Completion, Segment, Truncation
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId

INDEXES = st.integers(-1, 2**63 - 1)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    version = draw(st.integers(1, 5))
    lssn = Lssn(draw(st.integers(0, 2**63 - 1)) if version >= 2 else 0)

    def place(*, stored: bool, otherwise: int) -> DLSN:
        entry_id, slot_id = (draw(INDEXES), draw(INDEXES)) if stored else (otherwise, otherwise)
        return DLSN(lssn, EntryId(entry_id), SlotId(slot_id))

    completion = None
    if draw(st.booleans()):
        last = place(stored=version >= 2, otherwise=-1)
        completion = Completion(draw(INT64), draw(INT64), draw(st.integers(0, 2**31 - 1)), last)
    return Segment(
        lssn,
        LedgerId(draw(LEDGER_IDS)),
        draw(INT64),
        place(stored=version >= 3, otherwise=0),
        completion,
        start_sequence_id=draw(INT64) if version >= 5 else -1,
        truncation=draw(st.sampled_from(Truncation)) if version >= 2 else Truncation.ACTIVE,
        region=draw(st.integers(0, 15)) if version >= 2 else 0,
        version=version,
    )
