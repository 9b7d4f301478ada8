"""The cheap way to write adds gives the bytes of the general one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_vectors as vectors
from tests.support.strategies import INT32, many_examples, some_examples
from tests.support.wire_vectors import ENTRY, ENTRY_CRC32C, LEDGER, MASTER_KEY
from tests.unit.codec.wire.strategies import ENTRIES, KEYS, LEDGERS, STATUSES, TXN_IDS

from quire.codec.wire.codes import Status
from quire.codec.wire.v3 import encode_request, encode_response
from quire.codec.wire.v3_adds import AddResponses, add_request_parts
from quire.codec.wire.v3_messages import DEFERRED_SYNC, HIGH_PRIORITY, AddRequest, AddResponse
from quire.errors import InvalidArgument
from quire.types import EntryId, LedgerId


def test_apaches_bytes() -> None:
    before, after = add_request_parts(1, LEDGER, ENTRY, MASTER_KEY, entry_bytes=len(ENTRY_CRC32C))
    assert (before + ENTRY_CRC32C, after) == (vectors.V3_ADD, b"")
    before, after = add_request_parts(
        1, LEDGER, ENTRY, MASTER_KEY, entry_bytes=1, write_flags=DEFERRED_SYNC, recovery=True, priority=HIGH_PRIORITY
    )
    assert before + b"x" + after == vectors.V3_RECOVERY_ADD_OF_X
    assert AddResponses().encode(1, Status.EOK, LEDGER, ENTRY) == vectors.V3_ADD_OK


@many_examples
@given(
    TXN_IDS,
    LEDGERS,
    ENTRIES,
    KEYS,
    st.sampled_from([127, 128, 16383, 16384, 2**21]) | st.integers(0, 300),
    INT32,
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_requests_are_those_of_protobuf(
    txn_id: int,
    ledger: LedgerId,
    entry: EntryId,
    key: bytes,
    entry_bytes: int,
    write_flags: int,
    recovery: bool,
    priority: int,
) -> None:
    content = AddRequest(ledger, entry, key, bytes(entry_bytes), write_flags, recovery)
    before, after = add_request_parts(
        txn_id,
        ledger,
        entry,
        key,
        entry_bytes=entry_bytes,
        write_flags=write_flags,
        recovery=recovery,
        priority=priority,
    )
    assert before + content.body + after == encode_request(txn_id, content, priority=priority)


ANSWERS = st.lists(st.tuples(TXN_IDS, STATUSES, LEDGERS, ENTRIES), max_size=5)


@some_examples
@given(ANSWERS)
def test_answers_are_those_of_protobuf(answers: list[tuple[int, Status, LedgerId, EntryId]]) -> None:
    """One after another from the same writer: an answer leaves nothing behind for the next."""
    responses = AddResponses()
    for txn_id, status, ledger, entry in answers:
        expected = encode_response(txn_id, status, AddResponse(ledger, entry))
        assert responses.encode(txn_id, status, ledger, entry) == expected
    oks = [(txn_id, ledger, entry) for txn_id, _, ledger, entry in answers]
    singles = [responses.encode(txn_id, Status.EOK, ledger, entry) for txn_id, ledger, entry in oks]
    assert responses.encode_oks(iter(oks)) == b"".join(singles)


@pytest.mark.parametrize(
    ("txn_id", "ledger", "entry", "key", "entry_bytes"),
    [
        (2**64, 1, 0, MASTER_KEY, 1),
        (-1, 1, 0, MASTER_KEY, 1),
        (1, 2**63, 0, MASTER_KEY, 1),
        (1, 1, -(2**63) - 1, MASTER_KEY, 1),
        (1, 1, 0, MASTER_KEY[:19], 1),
        (1, 1, 0, MASTER_KEY, 2**32),
    ],
)
def test_what_does_not_fit_is_not_written(txn_id: int, ledger: int, entry: int, key: bytes, entry_bytes: int) -> None:
    with pytest.raises(InvalidArgument):
        add_request_parts(txn_id, LedgerId(ledger), EntryId(entry), key, entry_bytes=entry_bytes)


@pytest.mark.parametrize("options", [{"write_flags": 2**31}, {"priority": 2**32}, {"priority": -1}])
def test_options_that_do_not_fit_are_not_written(options: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        add_request_parts(
            1,
            LEDGER,
            ENTRY,
            MASTER_KEY,
            entry_bytes=1,
            write_flags=options.get("write_flags", 0),
            priority=options.get("priority", 0),
        )


def test_an_answer_that_does_not_fit_does_not_spoil_the_next() -> None:
    responses = AddResponses()
    with pytest.raises(InvalidArgument):
        responses.encode(1, Status.EFENCED, LEDGER, EntryId(2**63))
    assert responses.encode_oks([(1, LEDGER, ENTRY)]) == vectors.V3_ADD_OK
