"""What counts as a bad copy."""

from quire.errors import BookieUnavailable, DamagedEntry, EntriesUnknown, NoSuchEntry, NoSuchLedger
from quire.ledger.repair.replica_reads import CopySum, Finding, judged
from quire.types import BookieId, EntryId

A, B, C = map(BookieId, "ABC")
RIGHT, WRONG, OTHER = CopySum(3, 1), CopySum(3, 2), CopySum(4, 3)


def problems(**copies: Finding) -> dict[str, str]:
    found = {EntryId(7): {BookieId(name): finding for name, finding in copies.items()}}
    return {each.bookie: each.problem for each in judged(found)}


def test_equal_copies_are_fine() -> None:
    assert problems(A=RIGHT, B=RIGHT, C=RIGHT) == {}


def test_a_copy_that_most_others_contradict_is_named() -> None:
    assert problems(A=RIGHT, B=WRONG, C=RIGHT) == {"B": "different"}


def test_without_a_majority_every_copy_is_named() -> None:
    assert problems(A=RIGHT, B=WRONG) == {"A": "different", "B": "different"}
    assert problems(A=RIGHT, B=WRONG, C=OTHER) == {"A": "different", "B": "different", "C": "different"}


def test_a_copy_that_a_bookie_denies_is_missing() -> None:
    assert problems(A=RIGHT, B=NoSuchEntry("gone"), C=NoSuchLedger("gone")) == {"B": "missing", "C": "missing"}


def test_a_copy_that_fails_its_digest_or_that_the_bookie_lost_is_damaged() -> None:
    assert problems(A=DamagedEntry("bits"), B=EntriesUnknown("limbo")) == {"A": "damaged", "B": "damaged"}


def test_of_a_bookie_that_does_not_answer_nothing_is_known() -> None:
    assert problems(A=RIGHT, B=BookieUnavailable("down")) == {"B": "unreachable"}


def test_bad_copies_come_in_order_of_entries() -> None:
    found: dict[EntryId, dict[BookieId, Finding]] = {
        EntryId(9): {A: NoSuchEntry("gone")},
        EntryId(2): {B: NoSuchEntry("gone"), C: RIGHT},
    }
    assert [(each.entry_id, each.bookie) for each in judged(found)] == [(2, B), (9, A)]
