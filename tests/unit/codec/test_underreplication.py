"""The under-replication tree: Apache's paths and bodies, and any bytes at all."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import (
    INT32,
    INT64,
    LEDGER_IDS,
    damaged,
    decoded_or_damaged,
    many_examples,
    some_examples,
)

from quire.codec import underreplication as ur
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import LedgerId

MARKS = st.builds(ur.UnderreplicatedLedger, st.lists(st.text(max_size=8), max_size=3).map(tuple), st.none() | INT64)
LAYOUTS = st.builds(ur.ReplicationLayout, st.text(max_size=8), INT32)

# --- Paths


@pytest.mark.parametrize(
    ("ledger", "mark", "lock"),
    [
        (0, "ledgers/0000/0000/0000/0000/urL0000000000", "locks/urL0000000000"),
        (12345, "ledgers/0000/0000/0000/3039/urL0000012345", "locks/urL0000012345"),
        (4294967296, "ledgers/0000/0001/0000/0000/urL4294967296", "locks/urL4294967296"),
        (2**63 - 1, "ledgers/7fff/ffff/ffff/ffff/urL9223372036854775807", "locks/urL9223372036854775807"),
    ],
)
def test_marks_and_locks_are_where_apache_looks(ledger: int, mark: str, lock: str) -> None:
    assert ur.mark_path(LedgerId(ledger)) == mark
    assert ur.ledger_of_mark(mark) == ledger
    assert ur.lock_path(LedgerId(ledger)) == lock
    assert ur.ledger_of_lock(lock) == ledger


@pytest.mark.parametrize(
    "path",
    [
        "",
        "urL0000012345",
        "ledgers/urL0000012345",
        "ledgers/0000/0000/0000/3038/urL0000012345",
        "ledgers/0000/0000/0000/3039/urL12345",
        "ledgers/0000/0000/0000/3039/urL00000012345",
        "ledgers/0000/0000/0000/3039/urL000001234x",
        "ledgers/0000/0000/0000/3039/L0000012345",
        "ledgers/7FFF/FFFF/FFFF/FFFF/urL9223372036854775807",
        "ledgers/8000/0000/0000/0000/urL9223372036854775808",
        "/ledgers/0000/0000/0000/3039/urL0000012345",
    ],
)
def test_no_other_path_is_a_mark(path: str) -> None:
    with pytest.raises(DamagedMetadata):
        ur.ledger_of_mark(path)


@pytest.mark.parametrize("path", ["", "urL0000012345", "locks/urL12345", "locks/x/urL0000012345", "locks/urL"])
def test_no_other_path_is_a_lock(path: str) -> None:
    with pytest.raises(DamagedMetadata):
        ur.ledger_of_lock(path)


@pytest.mark.parametrize("make_path", [ur.mark_path, ur.lock_path])
def test_only_ledgers_have_paths(make_path: Callable[[LedgerId], str]) -> None:
    for number in (-1, 2**63):
        with pytest.raises(InvalidArgument):
            make_path(LedgerId(number))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("V_0000000012", 12),
        ("V_2147483647", 2147483647),
        ("V_12", None),
        ("V_", None),
        ("x", None),
        ("V_-000000001", None),
    ],
)
def test_votes_are_numbered(name: str, number: int | None) -> None:
    assert ur.vote_number(name) == number


@many_examples
@given(LEDGER_IDS.map(LedgerId))
def test_paths_lead_back_to_the_ledger(ledger: LedgerId) -> None:
    assert ur.ledger_of_mark(ur.mark_path(ledger)) == ledger
    assert ur.ledger_of_lock(ur.lock_path(ledger)) == ledger


# --- Bodies


def test_a_mark_is_written_as_apache_does() -> None:
    mark = ur.UnderreplicatedLedger(("bk1:3181", "bk2:3181"), 1700000000000)
    data = b'replica: "bk1:3181"\nreplica: "bk2:3181"\nctime: 1700000000000\n'
    assert ur.encode_mark(mark) == data
    assert ur.decode_mark(data) == mark


def test_a_mark_may_lack_its_time_and_its_replicas() -> None:
    assert ur.decode_mark(b"") == ur.UnderreplicatedLedger((), None)
    assert ur.encode_mark(ur.UnderreplicatedLedger((), 0)) == b"ctime: 0\n"


def test_the_layout_is_written_as_apache_does() -> None:
    assert ur.encode_replication_layout(ur.ReplicationLayout()) == b'type: "BASIC"\nversion: 1\n'
    assert ur.decode_replication_layout(b'type: "BASIC"\nversion: 1\n') == ur.ReplicationLayout()
    with pytest.raises(DamagedMetadata, match="version is missing"):
        ur.decode_replication_layout(b'type: "BASIC"\n')


@pytest.mark.parametrize(
    ("encode", "decode"), [(ur.encode_lock, ur.decode_lock), (ur.encode_vote, ur.decode_vote)], ids=["lock", "vote"]
)
def test_locks_and_votes_name_a_bookie_or_nobody(
    encode: Callable[[str | None], bytes], decode: Callable[[bytes], str | None]
) -> None:
    assert encode("bk1:3181") == b'bookieId: "bk1:3181"\n'
    assert decode(b'bookieId: "bk1:3181"\n') == "bk1:3181"
    assert encode(None) == b""
    assert decode(b"") is None
    with pytest.raises(InvalidArgument):
        encode("\ud800")


def test_check_times_are_binary() -> None:
    assert ur.encode_check_time(1700000000000) == bytes.fromhex("0880d095ffbc31")
    assert ur.decode_check_time(bytes.fromhex("0880d095ffbc31")) == 1700000000000
    assert ur.decode_check_time(b"") is None


def test_the_recovery_delay_is_decimal_seconds() -> None:
    assert ur.encode_recovery_delay(300) == b"300"
    assert ur.decode_recovery_delay(b"300") == 300
    for data in (b"", b"300\n", b"3.5", b"2147483648", b"\xff"):
        with pytest.raises(DamagedMetadata, match="lost bookie recovery delay"):
            ur.decode_recovery_delay(data)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: ur.UnderreplicatedLedger(("\ud800",)),
        lambda: ur.UnderreplicatedLedger((), 2**63),
        lambda: ur.ReplicationLayout("\ud800"),
        lambda: ur.ReplicationLayout("BASIC", 2**31),
        lambda: ur.encode_check_time(2**63),
        lambda: ur.encode_recovery_delay(-1),
        lambda: ur.encode_recovery_delay(2**31),
    ],
)
def test_what_could_not_be_stored_is_the_callers_mistake(attempt: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgument):
        attempt()


@some_examples
@given(MARKS, LAYOUTS, st.text(max_size=8), INT64, st.integers(0, 2**31 - 1))
def test_what_was_written_is_read_back(
    mark: ur.UnderreplicatedLedger, layout: ur.ReplicationLayout, name: str, time_ms: int, delay_s: int
) -> None:
    assert ur.decode_mark(ur.encode_mark(mark)) == mark
    assert ur.decode_replication_layout(ur.encode_replication_layout(layout)) == layout
    assert ur.decode_lock(ur.encode_lock(name)) == name
    assert ur.decode_vote(ur.encode_vote(name)) == name
    assert ur.decode_check_time(ur.encode_check_time(time_ms)) == time_ms
    assert ur.decode_recovery_delay(ur.encode_recovery_delay(delay_s)) == delay_s


@many_examples
@given(
    st.one_of(
        st.binary(),
        damaged(
            st.one_of(
                MARKS.map(ur.encode_mark),
                LAYOUTS.map(ur.encode_replication_layout),
                INT64.map(ur.encode_check_time),
                st.integers(0, 2**31 - 1).map(ur.encode_recovery_delay),
            )
        ),
    )
)
def test_any_bytes_are_read_or_damaged(data: bytes) -> None:
    for decode in (
        ur.decode_mark,
        ur.decode_replication_layout,
        ur.decode_lock,
        ur.decode_vote,
        ur.decode_check_time,
        ur.decode_recovery_delay,
    ):
        decoded_or_damaged(decode, data)


@many_examples
@given(
    st.text()
    | LEDGER_IDS.map(LedgerId)
    .map(ur.mark_path)
    .flatmap(lambda path: st.sampled_from([path[1:], path + "0", path.upper()]))
)
def test_any_path_is_read_or_damaged(path: str) -> None:
    for parse in (ur.ledger_of_mark, ur.ledger_of_lock):
        try:
            ledger = parse(path)
        except DamagedMetadata:
            continue
        assert path in (ur.mark_path(ledger), ur.lock_path(ledger))
