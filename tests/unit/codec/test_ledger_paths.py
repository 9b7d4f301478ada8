"""Ledger ids and paths: the tables of Apache's managers, strictness on the way back, and the making of ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import LEDGER_IDS, many_examples

from quire.codec import ledger_paths as paths
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import LedgerId

LAYOUTS = ["flat", "hierarchical", "longhierarchical", "etcd"]

TABLE = [
    (0, "00/0000/L0000", "000/0000/0000/0000/L0000", "L0000000000"),
    (12345, "00/0001/L2345", "000/0000/0000/0001/L2345", "L0000012345"),
    (2147483646, "21/4748/L3646", "000/0000/0021/4748/L3646", "L2147483646"),
    (2147483647, "000/0000/0021/4748/L3647", "000/0000/0021/4748/L3647", "L2147483647"),
    (4294967296, "000/0000/0042/9496/L7296", "000/0000/0042/9496/L7296", "L4294967296"),
    (21474836487, "000/0000/0214/7483/L6487", "000/0000/0214/7483/L6487", "L21474836487"),
    (1234567890123456789, "123/4567/8901/2345/L6789", "123/4567/8901/2345/L6789", "L1234567890123456789"),
    (9223372036854775807, "922/3372/0368/5477/L5807", "922/3372/0368/5477/L5807", "L9223372036854775807"),
]


@pytest.mark.parametrize(("number", "hierarchical", "long_hierarchical", "flat"), TABLE)
def test_ledgers_are_where_apache_looks(number: int, hierarchical: str, long_hierarchical: str, flat: str) -> None:
    for layout, path in (("hierarchical", hierarchical), ("longhierarchical", long_hierarchical), ("flat", flat)):
        assert paths.ledger_path(layout, LedgerId(number)) == path
        assert paths.ledger_id_at(layout, path) == number


@pytest.mark.parametrize(
    ("number", "uuid"),
    [
        (5, "00000000-0000-0000-0000-000000000005"),
        (0x2A00000000000003, "00000000-0000-0000-2a00-000000000003"),
        (21474836487, "00000000-0000-0000-0000-000500000007"),
        (2**63 - 1, "00000000-0000-0000-7fff-ffffffffffff"),
    ],
)
def test_etcd_names_ledgers_by_uuid(number: int, uuid: str) -> None:
    assert paths.ledger_path("etcd", LedgerId(number)) == f"ledgers/{uuid}"
    assert paths.ledger_id_at("etcd", f"ledgers/{uuid}") == number


@pytest.mark.parametrize(
    ("layout", "path"),
    [
        ("flat", ""),
        ("flat", "L"),
        ("flat", "L12345"),
        ("flat", "L00000012345"),
        ("flat", "0000012345"),
        ("flat", "L000001234x"),
        ("flat", "l0000012345"),
        ("flat", "L0000012345/"),
        ("flat", "/L0000012345"),
        ("flat", "L9223372036854775808"),
        ("flat", "LAYOUT"),
        ("flat", "L\u0660000012345"),
        ("hierarchical", ""),
        ("hierarchical", "00/0001/2345"),
        ("hierarchical", "00/0001/L234"),
        ("hierarchical", "0/0001/L2345"),
        ("hierarchical", "000/001/L2345"),
        ("hierarchical", "00/0001/L2345/"),
        ("hierarchical", "/00/0001/L2345"),
        ("hierarchical", "00/L001/L2345"),
        ("hierarchical", "00/0001/LL234"),
        ("hierarchical", "00/0001/L+234"),
        ("hierarchical", "21/4748/L3647"),  # Belongs into the long tree.
        ("hierarchical", "99/9999/L9999"),
        ("hierarchical", "000/0000/0000/0001/L2345"),  # Belongs into the short tree.
        ("hierarchical", "922/3372/0368/5477/L5808"),
        ("hierarchical", "idgen/ID-0000000001"),
        ("longhierarchical", "00/0001/L2345"),
        ("longhierarchical", "000/0000/0000/L2345"),
        ("longhierarchical", "000/0000/0000/0001/2345"),
        ("longhierarchical", "999/9999/9999/9999/L9999"),
        ("etcd", "00000000-0000-0000-0000-000000000005"),
        ("etcd", "ledgers/00000000-0000-0000-0000-00000000000G"),
        ("etcd", "ledgers/00000000-0000-0000-2A00-000000000003"),
        ("etcd", "ledgers/00000000-0000-0001-0000-000000000005"),
        ("etcd", "ledgers/00000000-0000-0000-8000-000000000000"),
        ("etcd", "ledgers/00000000000000000000000000000005"),
        ("etcd", "ledgers/ledgers/00000000-0000-0000-0000-000000000005"),
    ],
)
def test_no_other_path_is_a_ledger(layout: str, path: str) -> None:
    with pytest.raises(DamagedMetadata, match=f"not the path of a ledger in the {layout} layout"):
        paths.ledger_id_at(layout, path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_ledger_ids_have_paths(layout: str) -> None:
    for number in (-1, 2**63):
        with pytest.raises(InvalidArgument, match="cannot be a ledger id"):
            paths.ledger_path(layout, LedgerId(number))


def test_an_unknown_layout_is_the_callers_mistake() -> None:
    with pytest.raises(InvalidArgument, match="'ms' is not a ledger layout"):
        paths.ledger_path("ms", LedgerId(1))
    with pytest.raises(InvalidArgument, match="'ms' is not a ledger layout"):
        paths.ledger_id_at("ms", "L1")


@pytest.mark.parametrize(
    ("name", "digits", "leaf", "expected"),
    [
        ("00", 2, False, True),
        ("000", 2, False, False),
        ("0x", 2, False, False),
        ("\u0663\u0663", 2, False, False),
        ("L1", 2, False, False),
        ("L2345", 4, True, True),
        ("2345", 4, True, False),
        ("L12345", 4, True, False),
        ("LL234", 4, True, False),
    ],
)
def test_names_of_tree_levels(name: str, digits: int, leaf: bool, expected: bool) -> None:
    assert paths.is_tree_name(name, digits, leaf=leaf) is expected


@pytest.mark.parametrize("layout", ["hierarchical", "longhierarchical"])
@many_examples
@given(number=LEDGER_IDS)
def test_a_scan_of_the_trees_finds_every_ledger(layout: str, number: int) -> None:
    """Each name on the path fits its level in exactly one of the layout's trees."""
    names = paths.ledger_path(layout, LedgerId(number)).split("/")
    fits = [
        len(names) == len(tree)
        and all(
            paths.is_tree_name(name, digits, leaf=level == len(tree))
            for level, (name, digits) in enumerate(zip(names, tree, strict=True), start=1)
        )
        for tree in paths.TREES[layout]
    ]
    assert fits.count(True) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@many_examples
@given(number=LEDGER_IDS)
def test_paths_lead_back_to_the_ledger(layout: str, number: int) -> None:
    assert paths.ledger_id_at(layout, paths.ledger_path(layout, LedgerId(number))) == number


@pytest.mark.parametrize("layout", LAYOUTS)
@many_examples
@given(data=st.data())
def test_any_path_is_that_of_one_ledger_or_of_none(layout: str, data: st.DataObject) -> None:
    near = LEDGER_IDS.map(lambda number: paths.ledger_path(layout, LedgerId(number)))
    cut = st.builds(
        lambda path, start, new: path[:start] + new + path[start + 1 :],
        near,
        st.integers(0, 40),
        st.text("0L/-a", max_size=2),
    )
    path = data.draw(st.one_of(st.text(), cut))
    try:
        ledger = paths.ledger_id_at(layout, path)
    except DamagedMetadata:
        return
    assert paths.ledger_path(layout, ledger) == path


# --- Making ids


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("ID-0000000000", 0),
        ("/ledgers/idgen/ID-0000000007", 7),
        ("ID-2147483646", 2147483646),
        ("ID-2147483647", None),
        ("ID-4294967296", None),
        ("ID--2147483648", None),
        ("ID--000000001", None),
    ],
)
def test_a_sequence_number_is_an_id_until_31_bits_are_used_up(path: str, number: int | None) -> None:
    assert paths.short_id(path) == number


@pytest.mark.parametrize("path", ["", "ID-", "ID-x", "HOB-0000000001", "ID-0000000001/x", "0000000001", "ID-+1"])
def test_other_nodes_make_no_ids(path: str) -> None:
    with pytest.raises(DamagedMetadata):
        paths.short_id(path)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("HOB-0000000001", 1),
        ("HOB-2147483647", 2147483647),
        ("HOB-2147483648", None),
        ("HOB-1", None),
        ("HOB-00000000001", None),
        ("HOB-000000000x", None),
        ("ID-0000000001", None),
        ("", None),
    ],
)
def test_nodes_of_high_order_bits_are_known_by_name(name: str, number: int | None) -> None:
    assert paths.hob_number(name) == number
    if number is not None:
        assert paths.hob_name(number) == name


@pytest.mark.parametrize(
    ("high", "low", "number"),
    [(1, 0, 4294967296), (5, 7, 21474836487), (2**31 - 1, 2**31 - 2, 9223372034707292158), (0, 3, 3)],
)
def test_two_halves_make_a_long_id(high: int, low: int, number: int) -> None:
    assert paths.long_id(high, low) == number


@pytest.mark.parametrize(("high", "low"), [(-1, 0), (2**31, 0), (1, -1), (1, 2**31 - 1)])
def test_impossible_halves_are_the_callers_mistake(high: int, low: int) -> None:
    with pytest.raises(InvalidArgument):
        paths.long_id(high, low)


@pytest.mark.parametrize("high", [-1, 2**31])
def test_impossible_high_order_bits_have_no_name(high: int) -> None:
    with pytest.raises(InvalidArgument):
        paths.hob_name(high)


@pytest.mark.parametrize(
    ("bucket", "count", "number"),
    [(0, 1, 1), (42, 3, 0x2A00000000000003), (127, 2**56 - 1, 2**63 - 1), (0, 2**56, None)],
)
def test_a_bucket_and_its_count_make_an_etcd_id(bucket: int, count: int, number: int | None) -> None:
    assert paths.etcd_id(bucket, count) == number


@pytest.mark.parametrize(("bucket", "count"), [(-1, 1), (128, 1), (0, 0)])
def test_impossible_buckets_are_the_callers_mistake(bucket: int, count: int) -> None:
    with pytest.raises(InvalidArgument):
        paths.etcd_id(bucket, count)
