"""Values and bytes for the codec tests: valid ones, and valid ones that something has gone wrong with."""

import string
from collections.abc import Callable
from typing import Final, TypeVar

from hypothesis import settings
from hypothesis import strategies as st

from quire.errors import DamagedMetadata
from quire.types import BookieId, DigestType, EntryId, Fragment, LedgerMetadata, LedgerState, Quorum

T = TypeVar("T")

# No deadline: the machine that runs the tests may be busy with something else.
some_examples = settings(deadline=None, max_examples=40)
many_examples = settings(deadline=None, max_examples=100)

INT32: Final = st.integers(-(2**31), 2**31 - 1)
INT64: Final = st.integers(-(2**63), 2**63 - 1)
LEDGER_IDS: Final = st.one_of(
    st.integers(0, 2**63 - 1),
    st.integers(0, 100_000),
    st.integers(2**31 - 5, 2**31 + 5),
    st.integers(2**32 - 5, 2**32 + 5),
)

BOOKIE_ID_CHARACTERS: Final = string.ascii_letters + string.digits + "-." + ":;<=>?@[\\]^_"
BOOKIE_IDS: Final = (
    st.text(BOOKIE_ID_CHARACTERS, min_size=1, max_size=12).filter(lambda text: text.lower() != "readonly").map(BookieId)
)


@st.composite
def ledger_metadata(draw: st.DrawFn, *, version: int) -> LedgerMetadata:
    """Ledgers that `version` can hold, with nothing set that it does not store."""
    ensemble = draw(st.integers(1, 4))
    write = draw(st.integers(1, ensemble))
    bookies = BOOKIE_IDS.filter(lambda bookie: version > 1 or bookie != "CLOSED")
    starts = draw(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4, unique=True).map(sorted))
    fragments = tuple(
        Fragment(EntryId(start), tuple(draw(st.lists(bookies, min_size=ensemble, max_size=ensemble))))
        for start in starts
    )
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    last_entry_id = EntryId(draw(st.integers(-1, 2**63 - 1))) if closed else EntryId(-1)
    length = draw(st.integers(0, 2**63 - 1)) if closed else 0
    if version == 1:
        return LedgerMetadata(
            Quorum(ensemble, write, write),
            fragments,
            state,
            last_entry_id,
            length,
            digest=None,
            password=None,
            format_version=1,
        )
    return LedgerMetadata(
        Quorum(ensemble, write, draw(st.integers(0, write))),
        fragments,
        state,
        last_entry_id,
        length,
        digest=draw(st.sampled_from(DigestType)),
        password=draw(st.binary(max_size=20)),
        ctime_ms=draw(st.none() | INT64),
        custom=draw(st.dictionaries(st.text(max_size=6), st.binary(max_size=6), max_size=3)),
        ctoken=draw(INT64) if version == 3 else 0,
        format_version=version,
    )


@st.composite
def damaged(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Bytes that were valid before one to four accidents: overwritten, cut, repeated, or mixed with others."""
    data = draw(valid)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 8)))
        replacement = draw(st.one_of(st.binary(max_size=4), st.just(data[start:end] * 2), st.just(b"")))
        data = data[:start] + replacement + data[end:]
    return data


def decoded_or_damaged(decode: Callable[[bytes], T], data: bytes) -> T | None:
    """What `decode` makes of `data`, or None after `DamagedMetadata` with something to say. Lets all else through."""
    try:
        return decode(data)
    except DamagedMetadata as error:
        complaint = str(error)
    assert len(complaint) > 10
    return None
