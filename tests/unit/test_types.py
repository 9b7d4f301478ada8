"""The immutable values: which bookie ids exist, and which ledgers Apache's readers accept."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from quire.errors import InvalidArgument, InvalidName
from quire.types import (
    DLSN,
    INITIAL_DLSN,
    INVALID_DLSN,
    LEDGER_ID_MAX,
    NO_ENTRY,
    BookieId,
    DigestType,
    EntryId,
    Fragment,
    LedgerMetadata,
    LedgerState,
    Lssn,
    Quorum,
    SlotId,
    bookie_id,
    ledger_id,
)

# Letters, digits, `-`, `.`, and everything from `:` to `_`, which Apache's pattern lets through by accident.
LEGAL = {"-", ".", *map(chr, range(ord(":"), ord("_") + 1)), *map(chr, range(ord("a"), ord("z") + 1)), *"0123456789"}

A, B, C = (BookieId(f"{name}:3181") for name in "abc")
LEDGER = LedgerMetadata(Quorum(ensemble=2, write=2, ack=1), (Fragment(EntryId(0), (A, B)),))


# --- Bookie ids


@pytest.mark.parametrize("code", range(0x100))
def test_a_character_is_legal_in_a_bookie_id_exactly_if_apache_takes_it(code: int) -> None:
    for text in (chr(code), f"a{chr(code)}b", f"ab{chr(code)}"):
        if chr(code) in LEGAL:
            assert bookie_id(text) == text
        else:
            with pytest.raises(InvalidName, match="cannot be a bookie id"):
                bookie_id(text)


@pytest.mark.parametrize(
    "text", ["bk1:3181", "bookie-four", "10.0.0.1:3181", "[::1]:3181", "A<b>\\@;=?^_c", "readonly2"]
)
def test_ids_that_clusters_use_are_legal(text: str) -> None:
    assert bookie_id(text) == text


@pytest.mark.parametrize(
    "text", ["", "readonly", "READONLY", "ReadOnly", "a/b", "a,b", "a b", "caf\u00e9:1", "\u0661:1", "a\n"]
)
def test_ids_that_java_clients_refuse_are_illegal(text: str) -> None:
    with pytest.raises(InvalidName) as caught:
        bookie_id(text)
    assert caught.value.hint
    assert caught.value.facts == {"bookie_id": text}


# --- Ledger ids


@pytest.mark.parametrize("number", [0, 1, 2**31 - 1, 2**63 - 1])
def test_ledger_ids_have_63_bits(number: int) -> None:
    assert ledger_id(number) == number
    assert LEDGER_ID_MAX == 2**63 - 1


@pytest.mark.parametrize("number", [-1, 2**63])
def test_other_numbers_are_no_ledger_ids(number: int) -> None:
    with pytest.raises(InvalidArgument, match=str(number)):
        ledger_id(number)


# --- Quorums


@pytest.mark.parametrize(("ensemble", "write", "ack"), [(1, 1, 1), (3, 2, 2), (3, 3, 2), (5, 3, 0)])
def test_quorums_that_fit_together(ensemble: int, write: int, ack: int) -> None:
    assert Quorum(ensemble, write, ack) == Quorum(ensemble=ensemble, write=write, ack=ack)


@pytest.mark.parametrize(
    ("ensemble", "write", "ack"), [(2, 3, 2), (3, 2, 3), (3, 2, -1), (0, 0, 0), (3, 0, 0), (-1, -1, -1)]
)
def test_quorums_that_do_not(ensemble: int, write: int, ack: int) -> None:
    with pytest.raises(InvalidArgument, match="do not fit together"):
        Quorum(ensemble, write, ack)


# --- Ledger metadata


def test_a_fragment_names_legal_bookies_only() -> None:
    with pytest.raises(InvalidName):
        Fragment(EntryId(0), (A, BookieId("b c")))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"fragments": ()}, "no fragment"),
        ({"fragments": (Fragment(EntryId(-1), (A, B)),)}, "fragment -1 does not come after"),
        (
            {"fragments": (Fragment(EntryId(0), (A, B)), Fragment(EntryId(0), (A, C)))},
            "fragment 0 does not come after 0",
        ),
        (
            {"fragments": (Fragment(EntryId(9), (A, B)), Fragment(EntryId(3), (A, C)))},
            "fragment 3 does not come after 9",
        ),
        ({"fragments": (Fragment(EntryId(0), (A,)),)}, "has 1 bookies, the ensemble size is 2"),
        ({"fragments": (Fragment(EntryId(0), (A, B)), Fragment(EntryId(5), (A, B, C)))}, "fragment 5 has 3 bookies"),
        ({"fragments": (Fragment(EntryId(2**63), (A, B)),)}, "first entry id 9223372036854775808 does not fit"),
        ({"password": None}, "password and digest type"),
        ({"digest": None}, "password and digest type"),
        ({"format_version": 0}, "format version 0 does not exist"),
        ({"format_version": 4}, "format version 4 does not exist"),
        ({"state": LedgerState.CLOSED, "last_entry_id": EntryId(-2)}, "closed at entry -2"),
        ({"state": LedgerState.CLOSED, "length": -1}, "with length -1"),
        ({"last_entry_id": EntryId(2**63)}, "last entry id 9223372036854775808 does not fit"),
        ({"length": 2**63}, "length 9223372036854775808 does not fit"),
        ({"ctime_ms": -(2**63) - 1}, "creation time -9223372036854775809 does not fit"),
        ({"ctoken": 2**63}, "creation token 9223372036854775808 does not fit"),
        ({"custom": {"\ud800": b""}}, "is not valid text"),
    ],
)
def test_a_ledger_that_apache_could_not_read_cannot_be_made(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        replace(LEDGER, **changes)  # type: ignore[arg-type]


def test_a_ledger_may_begin_after_entry_0_and_lack_its_password() -> None:
    """Apache's readers take both, so tools must be able to show such ledgers."""
    odd = replace(LEDGER, fragments=(Fragment(EntryId(7), (A, B)),), password=None, digest=None)
    assert odd.fragments[0].first_entry_id == 7


def test_a_new_ledger_is_open_and_empty() -> None:
    assert (LEDGER.state, LEDGER.last_entry_id, LEDGER.length) == (LedgerState.OPEN, NO_ENTRY, 0)
    assert (LEDGER.digest, LEDGER.password, LEDGER.format_version) == (DigestType.CRC32C, b"", 3)


def test_the_ensemble_of_an_entry_is_that_of_the_last_fragment_up_to_it() -> None:
    ledger = replace(LEDGER, fragments=(Fragment(EntryId(0), (A, B)), Fragment(EntryId(10), (A, C))))
    assert [ledger.ensemble_at(EntryId(entry)) for entry in (0, 9, 10, 999)] == [(A, B), (A, B), (A, C), (A, C)]


def test_an_update_keeps_all_but_the_creation_token() -> None:
    ledger = replace(LEDGER, ctoken=7, ctime_ms=5, custom={"k": b"v"}, format_version=2, password=b"pw")
    updated = ledger.updated(state=LedgerState.IN_RECOVERY)
    assert updated == replace(ledger, ctoken=0, state=LedgerState.IN_RECOVERY)
    assert ledger.ctoken == 7


def test_ledgers_are_values() -> None:
    """Equal in all parts means equal, with equal hashes, whatever mapping the custom metadata came in."""
    source = {"k": b"v", "l": b"w"}
    one, same = replace(LEDGER, custom=source), replace(LEDGER, custom={"l": b"w", "k": b"v"})
    assert one == same
    assert hash(one) == hash(same)
    assert one != replace(LEDGER, custom={"k": b"other"})
    assert one != replace(one, password=b"other")
    source["k"] = b"changed"
    assert one == same
    with pytest.raises(TypeError):
        one.custom["k"] = b""  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        one.length = 1  # type: ignore[misc]


def test_a_ledger_can_be_sent_to_another_process() -> None:
    """Spark does so with whatever its tasks need."""
    ledger = replace(LEDGER, custom={"k": b"v"}, password=b"pw", ctime_ms=5, format_version=2)
    for sent in (pickle.loads(pickle.dumps(ledger)), copy.deepcopy(ledger)):
        assert sent == ledger
        with pytest.raises(TypeError):
            sent.custom["k"] = b""  # type: ignore[index]


def test_a_password_does_not_show() -> None:
    assert "hunter2" not in repr(replace(LEDGER, password=b"hunter2"))


@pytest.mark.parametrize("place", [INITIAL_DLSN, DLSN(Lssn(3), EntryId(17), SlotId(2)), INVALID_DLSN])
def test_a_place_in_a_stream_is_read_back_from_its_text(place: DLSN) -> None:
    assert DLSN.parse(str(place)) == place


def test_the_text_of_a_place_is_short() -> None:
    assert str(DLSN(Lssn(3), EntryId(17), SlotId(0))) == f"{DLSN(Lssn(3), EntryId(17), SlotId(0))}" == "3:17:0"


@pytest.mark.parametrize(
    "text", ["", "3", "3:17", "3:17:0:1", "a:b:c", "3: 17:0", "3:17:0\n", "٣:17:0", "3:17:" + "9" * 20]
)
def test_what_is_no_place_in_a_stream_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        DLSN.parse(text)
