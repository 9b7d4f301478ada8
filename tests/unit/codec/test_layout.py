"""The LAYOUT node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import INT32, damaged, decoded_or_damaged, many_examples, some_examples

from quire.codec.layout import FACTORY_CLASSES, LedgerLayout, decode_layout, encode_layout, layout_for, layout_name
from quire.errors import DamagedMetadata, InvalidArgument

HIERARCHICAL = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"

LAYOUTS = st.builds(
    LedgerLayout,
    st.sampled_from([1, 2]),
    st.text(st.characters(codec="utf-8", exclude_characters=":\n"), min_size=1, max_size=30),
    INT32,
)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("flat", b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1"),
        ("hierarchical", HIERARCHICAL),
        ("longhierarchical", b"2\norg.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory:1"),
        ("etcd", b"2\norg.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory:0"),
    ],
)
def test_each_layout_is_stored_as_apache_does(name: str, data: bytes) -> None:
    assert encode_layout(layout_for(name)) == data
    assert decode_layout(data) == layout_for(name)
    assert layout_name(decode_layout(data).manager) == name


def test_the_default_layout_takes_63_bytes() -> None:
    assert len(HIERARCHICAL) == 63


@pytest.mark.parametrize("name", ["flat", "hierarchical"])
def test_format_version_1_names_a_type(name: str) -> None:
    layout = decode_layout(f"1\n{name}:1".encode())
    assert layout == LedgerLayout(1, name, 1)
    assert layout_name(layout.manager) == name


@pytest.mark.parametrize("name", FACTORY_CLASSES)
def test_renamed_classes_are_recognised(name: str) -> None:
    assert layout_name("dlshade." + FACTORY_CLASSES[name]) == name


@pytest.mark.parametrize(
    "manager",
    [
        "longhierarchical",  # No type name of format version 1.
        "etcd",
        "org.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory",
        "org.apache.bookkeeper.meta.MSLedgerManagerFactory",
        "other.org.apache.bookkeeper.meta.FlatLedgerManagerFactory",
        "",
    ],
)
def test_other_managers_are_not_mistaken_for_ours(manager: str) -> None:
    assert layout_name(manager) is None


def test_lines_after_the_second_are_ignored() -> None:
    assert decode_layout(HIERARCHICAL + b"\nanything:at:all\n") == layout_for("hierarchical")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "the format version on line 1"),
        (b"0\nflat:1", "the format version on line 1"),
        (b"3\nflat:1", "the format version on line 1"),
        (b"two\nflat:1", "the format version on line 1"),
        (b"2", "line 2 should be 'manager:version'"),
        (b"2\n", "line 2 should be 'manager:version'"),
        (b"2\nflat", "line 2 should be 'manager:version'"),
        (b"2\nflat:1:1", "line 2 should be 'manager:version'"),
        (b"2\nflat:", "the manager version on line 2"),
        (b"2\nflat:one", "the manager version on line 2"),
        (b"2\nflat:2147483648", "the manager version on line 2"),
        (b"2\n:1", "cannot name a ledger manager"),
        (b"2\nfl\xffat:1", "byte 4 is not UTF-8"),
    ],
)
def test_a_broken_layout_is_refused_saying_where(data: bytes, complaint: str) -> None:
    with pytest.raises(DamagedMetadata, match=f"ledger layout: .*{complaint}"):
        decode_layout(data)


@pytest.mark.parametrize(
    ("version", "manager", "manager_version"),
    [(0, "x", 1), (3, "x", 1), (2, "", 1), (2, "a:b", 1), (2, "a\nb", 1), (2, "\ud800", 1), (2, "x", 2**31)],
)
def test_a_layout_that_could_not_be_read_back_cannot_be_made(version: int, manager: str, manager_version: int) -> None:
    with pytest.raises(InvalidArgument):
        LedgerLayout(version, manager, manager_version)


def test_a_layout_must_be_known_to_be_stored() -> None:
    with pytest.raises(InvalidArgument, match="'ms' is not a ledger layout"):
        layout_for("ms")


@some_examples
@given(LAYOUTS)
def test_what_was_written_is_read_back(layout: LedgerLayout) -> None:
    assert decode_layout(encode_layout(layout)) == layout


@many_examples
@given(st.one_of(st.binary(), damaged(LAYOUTS.map(encode_layout))))
def test_any_bytes_are_read_or_damaged(data: bytes) -> None:
    layout = decoded_or_damaged(decode_layout, data)
    if layout is not None:
        assert decode_layout(encode_layout(layout)) == layout
