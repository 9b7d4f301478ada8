"""Cookies: Apache's text, older versions, comparing, and any bytes at all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import BOOKIE_IDS, damaged, decoded_or_damaged, many_examples, some_examples

from quire.codec.cookie import Cookie, decode_cookie, encode_cookie
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import BookieId

COOKIE = Cookie(
    bookie_id=BookieId("bk1:3181"),
    journal_dirs=("/data/journal",),
    ledger_dirs=("/data/l1", "/data/l2"),
    instance_id="0e2d6a4a-6b52-4a7b-9b1f-0b9a5f1f5f10",
)
COOKIE_BYTES = rb"""5
bookieHost: "bk1:3181"
journalDir: "/data/journal"
ledgerDirs: "2\t/data/l1\t/data/l2"
instanceId: "0e2d6a4a-6b52-4a7b-9b1f-0b9a5f1f5f10"
"""


def directories(forbidden: str) -> st.SearchStrategy[tuple[str, ...]]:
    name = st.text(st.characters(codec="utf-8", exclude_characters=forbidden), min_size=1, max_size=8)
    return st.lists(name, max_size=3).map(tuple)


@st.composite
def cookies(draw: st.DrawFn) -> Cookie:
    version = draw(st.sampled_from([3, 4, 5, 6]))
    line_break = "\n" if version == 3 else ""
    return Cookie(
        bookie_id=draw(BOOKIE_IDS),
        journal_dirs=draw(directories("," + line_break)),
        ledger_dirs=draw(directories("\t" + line_break)),
        index_dirs=draw(st.none() | directories("\t")) if version >= 5 else None,
        instance_id=draw(st.none() | st.text(min_size=1, max_size=8)) if version >= 4 else None,
        layout_version=version,
    )


def test_apaches_text_is_written_and_read() -> None:
    assert encode_cookie(COOKIE) == COOKIE_BYTES
    assert decode_cookie(COOKIE_BYTES) == COOKIE


def test_several_journals_and_index_directories() -> None:
    cookie = replace(COOKIE, journal_dirs=("/j1", "/j2"), index_dirs=("/i",), instance_id=None)
    data = rb"""5
bookieHost: "bk1:3181"
journalDir: "/j1,/j2"
ledgerDirs: "2\t/data/l1\t/data/l2"
indexDirs: "1\t/i"
"""
    assert encode_cookie(cookie) == data
    assert decode_cookie(data) == cookie


def test_version_4_is_the_same_under_another_number() -> None:
    data = b"4" + COOKIE_BYTES[1:]
    assert decode_cookie(data) == replace(COOKIE, layout_version=4)
    assert encode_cookie(replace(COOKIE, layout_version=4)) == data


def test_version_3_is_three_lines() -> None:
    cookie = replace(COOKIE, instance_id=None, layout_version=3)
    data = b"3\nbk1:3181\n/data/journal\n2\t/data/l1\t/data/l2\n"
    assert encode_cookie(cookie) == data
    assert decode_cookie(data) == cookie
    assert decode_cookie(data.rstrip(b"\n")) == cookie


def test_later_versions_are_read_as_text_format() -> None:
    data = COOKIE_BYTES.replace(b"5\n", b"17\n", 1) + b'newField: "x"\n'
    assert decode_cookie(data) == replace(COOKIE, layout_version=17)


def test_empty_means_absent_where_a_field_is_optional() -> None:
    data = COOKIE_BYTES.replace(b"0e2d6a4a-6b52-4a7b-9b1f-0b9a5f1f5f10", b"") + b'indexDirs: ""\n'
    assert decode_cookie(data) == replace(COOKIE, instance_id=None)


@pytest.mark.parametrize("version", [1, 2])
def test_the_oldest_versions_are_refused_with_the_reason(version: int) -> None:
    with pytest.raises(DamagedMetadata, match=f"layout version {version} is too old") as caught:
        decode_cookie(f"{version}\nanything\n".encode())
    assert "upgrade" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "the layout version on line 1"),
        (b"five\n", "the layout version on line 1"),
        (b"0\n", "the layout version on line 1"),
        (b"-5\n", "the layout version on line 1"),
        (b"\xff\n", "byte 0 is not UTF-8"),
        (b"3\nbk1:3181\n/j", "lines 2 to 4"),
        (b"3\nbk1:3181\n/j\n/l\n", "the count in the ledger directories"),
        (b"3\nbk 1\n/j\n1\t/l\n", "cannot be a bookie id"),
        (b"3\nbk1:3181\n/j\n1\t/\xff\n", "after the first line: byte 15 is not UTF-8"),
        (b"5\n", "bookieHost is missing"),
        (COOKIE_BYTES.replace(b"journalDir", b"journalDirs"), "journalDir is missing"),
        (COOKIE_BYTES.replace(b"bk1:", b"bk/1:"), "cannot be a bookie id"),
        (COOKIE_BYTES.replace(b'"2\\t', b'"3\\t'), "ledgerDirs should be 3 directories, but there are 2"),
        (COOKIE_BYTES.replace(b'"2\\t', b'"'), "the count in ledgerDirs"),
        (COOKIE_BYTES + b'indexDirs: "2\\t/i"', "indexDirs should be 2 directories, but there are 1"),
        (COOKIE_BYTES.replace(b"\\t/data/l2", b"\\t"), "cannot be a directory"),
        (COOKIE_BYTES.replace(b"ledgerDirs: ", b"ledgerDirs "), "line 4, column 12: ':' should follow"),
    ],
)
def test_a_broken_cookie_is_refused_saying_where(data: bytes, complaint: str) -> None:
    with pytest.raises(DamagedMetadata, match=f"cookie.*{complaint}"):
        decode_cookie(data)


@pytest.mark.parametrize(
    "cookie",
    [
        replace(COOKIE, layout_version=3),
        replace(COOKIE, index_dirs=("/i",), layout_version=4),
        replace(COOKIE, instance_id=None, index_dirs=("/i",), layout_version=3),
        replace(COOKIE, instance_id=None, ledger_dirs=("/a\nb",), layout_version=3),
    ],
)
def test_what_a_version_cannot_hold_is_not_dropped_in_silence(cookie: Cookie) -> None:
    with pytest.raises(InvalidArgument, match="layout version"):
        encode_cookie(cookie)


@pytest.mark.parametrize(
    "changes",
    [
        {"bookie_id": "a b"},
        {"layout_version": 2},
        {"layout_version": 2**31},
        {"instance_id": ""},
        {"instance_id": "\ud800"},
        {"journal_dirs": ("/a,b",)},
        {"journal_dirs": ("",)},
        {"ledger_dirs": ("/a\tb",)},
        {"ledger_dirs": ("/\udc80",)},
        {"index_dirs": ("/a\tb",)},
    ],
)
def test_a_cookie_that_could_not_be_read_back_cannot_be_made(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        replace(COOKIE, **changes)  # type: ignore[arg-type]


# --- Comparing


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"bookie_id": BookieId("bk2:3181")}, "the bookie id is 'bk1:3181' here and 'bk2:3181' in the cookie"),
        ({"journal_dirs": ("/other",)}, "journal directories are not in the cookie: /data/journal"),
        ({"journal_dirs": ("/data/journal", "/j2")}, "journal directories of the cookie are not configured: /j2"),
        ({"ledger_dirs": ("/data/l1",)}, "ledger directories are not in the cookie: /data/l2"),
        ({"ledger_dirs": ("/data/l1", "/data/l2", "/l3")}, "ledger directories of the cookie are not configured: /l3"),
        ({"ledger_dirs": ("/data/l2", "/data/l1")}, "listed differently: /data/l1, /data/l2 here"),
        ({"index_dirs": ("/i",)}, "index directories of the cookie are not configured: /i"),
        ({"instance_id": None}, "the instance id is 0e2d6a4a-6b52-4a7b-9b1f-0b9a5f1f5f10 here and None in the cookie"),
        ({"instance_id": "other"}, "here and other in the cookie"),
    ],
)
def test_a_difference_is_explained(changes: dict[str, object], difference: str) -> None:
    found = COOKIE.differences(replace(COOKIE, **changes))  # type: ignore[arg-type]
    assert any(difference in words for words in found)


@pytest.mark.parametrize("version", [3, 4, 5, 6])
def test_the_layout_version_is_no_difference(version: int) -> None:
    assert COOKIE.differences(replace(COOKIE, layout_version=version)) == []


def test_index_directories_default_to_the_ledger_directories() -> None:
    named = replace(COOKIE, index_dirs=COOKIE.ledger_dirs)
    assert COOKIE.differences(named) == named.differences(COOKIE) == []


def test_expansion_allows_more_ledger_and_index_directories() -> None:
    stored = replace(COOKIE, index_dirs=("/i1",))
    grown = replace(stored, ledger_dirs=("/data/l2", "/new", "/data/l1"), index_dirs=("/i1", "/i2"))
    assert len(grown.differences(stored)) == 2
    assert grown.differences(stored, expansion=True) == []


def test_expansion_allows_neither_fewer_directories_nor_other_journals() -> None:
    shrunk = replace(COOKIE, ledger_dirs=("/data/l1", "/new"), journal_dirs=("/data/journal", "/j2"))
    found = shrunk.differences(COOKIE, expansion=True)
    assert found == [
        "journal directories are not in the cookie: /j2",
        "ledger directories of the cookie are not configured: /data/l2",
    ]


# --- Any value, any bytes


@some_examples
@given(cookies())
def test_what_was_written_is_read_back(cookie: Cookie) -> None:
    assert decode_cookie(encode_cookie(cookie)) == cookie


@some_examples
@given(cookies(), cookies())
def test_a_cookie_does_not_differ_from_itself_and_differences_are_mutual(one: Cookie, other: Cookie) -> None:
    assert one.differences(one) == []
    assert bool(one.differences(other)) == bool(other.differences(one))


@many_examples
@given(st.one_of(st.binary(), st.binary().map(b"5\n".__add__), damaged(cookies().map(encode_cookie))))
def test_any_bytes_are_read_or_damaged(data: bytes) -> None:
    cookie = decoded_or_damaged(decode_cookie, data)
    if cookie is not None and (cookie.index_dirs is None or cookie.layout_version >= 5):
        assert decode_cookie(encode_cookie(cookie)) == cookie
