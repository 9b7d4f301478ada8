"""The cheap way to answer reads gives the bytes of the general one."""

from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import many_examples
from tests.unit.codec.wire.strategies import ENTRIES, LEDGERS, TXN_IDS

from quire.codec.wire.codes import Status
from quire.codec.wire.v3 import encode_response
from quire.codec.wire.v3_messages import ReadResponse
from quire.codec.wire.v3_reads import read_response_parts
from quire.types import EntryId, LedgerId


@many_examples
@given(TXN_IDS, LEDGERS, ENTRIES, st.sampled_from([0, 1, 127, 128, 16384, 70_000]), st.none() | ENTRIES)
def test_answers_are_those_of_protobuf(
    txn_id: int, ledger_id: LedgerId, entry_id: EntryId, size: int, max_lac: EntryId | None
) -> None:
    body = b"e" * size
    before, after = read_response_parts(txn_id, ledger_id, entry_id, entry_bytes=size, max_lac=max_lac)
    whole = encode_response(txn_id, Status.EOK, ReadResponse(ledger_id, entry_id, body, max_lac))
    assert before + body + after == whole
