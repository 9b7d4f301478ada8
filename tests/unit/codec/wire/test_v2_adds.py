"""Runs of adds say what single ones say, byte for byte, and answers are read alike in runs and one by one."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import LEDGER_IDS, many_examples, some_examples

from quire.codec.digest import digest_for, master_key
from quire.codec.entry import EntryCodec
from quire.codec.wire import v2
from quire.codec.wire.codes import Status
from quire.codec.wire.frames import FrameSplitter
from quire.codec.wire.v2_adds import (
    ADD_ANSWER_BYTES,
    AddEncoder,
    decode_add_answers,
    decode_add_requests,
    encode_add_oks,
    run_start,
)
from quire.errors import InvalidArgument, ProtocolViolation
from quire.types import NO_ENTRY, DigestType, EntryId, LedgerId

KEY = master_key(b"secret")


@some_examples
@given(
    LEDGER_IDS.map(LedgerId),
    st.integers(0, 2**62).map(EntryId),
    st.lists(st.binary(max_size=50), max_size=6),
    st.integers(-1, 2**62).map(EntryId),
    st.integers(0, 2**40),
    st.sampled_from(DigestType),
    st.sampled_from([0, v2.RECOVERY_ADD | v2.HIGH_PRIORITY]),
)
def test_a_run_is_its_requests_one_after_the_other(
    ledger_id: LedgerId,
    first: EntryId,
    payloads: list[bytes],
    lac: EntryId,
    length: int,
    digest_type: DigestType,
    flags: int,
) -> None:
    digest = digest_for(digest_type, b"secret")
    heads, length_after = AddEncoder(ledger_id, digest, KEY, flags=flags).heads(first, payloads, lac=lac, length=length)
    codec, at = EntryCodec(ledger_id, digest), length
    for step, payload in enumerate(payloads):
        at += len(payload)
        entry = codec.prefix(EntryId(first + step), payload, lac=lac, length=at)
        request = v2.add_request_prefix(KEY, entry_bytes=len(entry) + len(payload), flags=flags)
        assert heads[step] == request + entry
    assert (len(heads), length_after) == (len(payloads), at)


def test_what_does_not_fit_is_refused() -> None:
    digest = digest_for(DigestType.CRC32C, b"")
    with pytest.raises(InvalidArgument):
        AddEncoder(LedgerId(1), digest, KEY[:19])
    with pytest.raises(InvalidArgument):
        AddEncoder(LedgerId(1), digest, KEY, flags=1 << 16)
    with pytest.raises(InvalidArgument):
        AddEncoder(LedgerId(1), digest, KEY).heads(EntryId(2**63), [b""], lac=NO_ENTRY, length=0)


def answer(status: Status, ledger_id: int, entry_id: int) -> bytes:
    return v2.encode_add_response(status, LedgerId(ledger_id), EntryId(entry_id))


ANSWERS = st.lists(
    st.tuples(st.sampled_from([Status.EOK] * 4 + [Status.EFENCED, Status.EIO]), st.integers(1, 2), st.integers(0, 9)),
    max_size=30,
)
OTHERS = st.sampled_from([b"", v2.encode_read_request(LedgerId(1), EntryId(2)), b"\0\0\0\x18" + bytes(24), b"\0"])


@many_examples
@given(ANSWERS, OTHERS, ANSWERS)
def test_answers_are_read_alike_in_runs_and_one_by_one(
    before: list[tuple[Status, int, int]], other: bytes, after: list[tuple[Status, int, int]]
) -> None:
    """As far as nothing else comes between."""
    data = b"".join(answer(*each) for each in before) + other + b"".join(answer(*each) for each in after)
    runs, taken = decode_add_answers(data)
    found = [(status, ledger_id, entry_id) for status, ledger_id, entry_ids in runs for entry_id in entry_ids]
    one_by_one = [v2.decode_add_response(body) for body in FrameSplitter().split(data[:taken])]
    assert found == one_by_one
    assert taken == len(found) * ADD_ANSWER_BYTES
    assert found[: len(before)] == before
    assert len(found) == (len(before) if other else len(before) + len(after))
    assert all(run[:2] != following[:2] for run, following in itertools.pairwise(runs)), "runs are whole"


@some_examples
@given(LEDGER_IDS, st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=6))
def test_many_answers_are_the_single_ones_in_a_row(ledger_id: int, entry_ids: list[int]) -> None:
    single = b"".join(answer(Status.EOK, ledger_id, entry_id) for entry_id in entry_ids)
    assert encode_add_oks(LedgerId(ledger_id), [EntryId(each) for each in entry_ids]) == single


@some_examples
@given(
    LEDGER_IDS.map(LedgerId), st.lists(st.tuples(st.integers(0, 99), st.binary(max_size=40)), min_size=1, max_size=6)
)
def test_requests_are_read_alike_in_runs_and_one_by_one(ledger_id: LedgerId, adds: list[tuple[int, bytes]]) -> None:
    codec, frames = EntryCodec(ledger_id, digest_for(DigestType.CRC32C, b"")), []
    for entry_id, payload in adds:
        entry = codec.prefix(EntryId(entry_id), payload, lac=EntryId(entry_id - 1), length=9) + payload
        frames.append(memoryview(v2.add_request_prefix(KEY, entry_bytes=len(entry)) + entry)[4:])
    starts = {run_start(frame) for frame in frames}
    assert len(starts) == 1
    assert None not in starts
    key, ledger, entry_ids, lacs, entries = decode_add_requests(frames)
    singly = [(*start, bytes(entry)) for *start, entry in map(v2.decode_add_request, frames)]
    assert singly == [(0, key, ledger, *rest) for rest in zip(entry_ids, lacs, entries, strict=True)]


def test_what_is_special_about_an_add_keeps_it_out_of_a_run() -> None:
    entry = EntryCodec(LedgerId(1), digest_for(DigestType.DUMMY, b"")).prefix(EntryId(0), lac=NO_ENTRY, length=0)
    plain = v2.add_request_prefix(KEY, entry_bytes=len(entry)) + entry
    assert run_start(memoryview(plain)[4:]) is not None
    flagged = v2.add_request_prefix(KEY, entry_bytes=len(entry), flags=v2.RECOVERY_ADD) + entry
    others = [
        flagged[4:],
        plain[4:51],
        b"\x01" + plain[5:],
        v2.encode_read_request(LedgerId(1), EntryId(0))[4:],
        b"\x02",
    ]
    assert [run_start(memoryview(frame)) for frame in others] == [None] * len(others)


def test_a_code_without_a_meaning_is_left_for_whoever_complains() -> None:
    bad = bytearray(answer(Status.EOK, 1, 1))
    bad[11] = 77
    good = answer(Status.EOK, 1, 0)
    runs, taken = decode_add_answers(good + bytes(bad) + good)
    assert (runs, taken) == ([(Status.EOK, 1, (0,))], ADD_ANSWER_BYTES)
    with pytest.raises(ProtocolViolation):
        v2.decode_add_response(memoryview(bytes(bad))[4:])


@pytest.mark.parametrize("cut", range(1, ADD_ANSWER_BYTES))
def test_an_answer_that_is_cut_off_is_left(cut: int) -> None:
    whole = answer(Status.EOK, 3, 5)
    assert decode_add_answers(whole + whole[:cut]) == ([(Status.EOK, 3, (5,))], ADD_ANSWER_BYTES)
    assert decode_add_answers(whole[:cut]) == ([], 0)
