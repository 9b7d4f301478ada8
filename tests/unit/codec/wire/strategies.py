"""Values and bytes for the tests of the wire protocol."""

from collections.abc import Callable
from typing import Final, TypeVar

from hypothesis import strategies as st
from tests.support.strategies import INT64

from quire.codec.wire.codes import Status
from quire.errors import ProtocolViolation
from quire.types import EntryId, LedgerId

T = TypeVar("T")

SMALL_AND_ANY: Final = st.integers(0, 300) | INT64
LEDGERS: Final = SMALL_AND_ANY.map(LedgerId)
ENTRIES: Final = SMALL_AND_ANY.map(EntryId)
KEYS: Final = st.binary(min_size=20, max_size=20)
BODIES: Final = st.binary(max_size=60)
STATUSES: Final = st.sampled_from(Status)
TXN_IDS: Final = st.integers(0, 300) | st.integers(0, 2**64 - 1)


@st.composite
def chunked(draw: st.DrawFn, stream: st.SearchStrategy[bytes]) -> tuple[bytes, list[bytes]]:
    """Bytes, and the same bytes as a connection might deliver them: cut anywhere, also into nothing."""
    data = draw(stream)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return data, [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def decoded_or_refused(decode: Callable[[memoryview], T], data: bytes) -> T | None:
    """What `decode` makes of `data`, or None after `ProtocolViolation` with something to say. Lets all else through."""
    try:
        return decode(memoryview(data))
    except ProtocolViolation as error:
        complaint = str(error)
    assert len(complaint) > 10
    return None
