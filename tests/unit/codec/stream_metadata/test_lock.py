"""Members of locks: Apache's names, who owns them, and in which order they wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import INT64, many_examples

from quire.codec.stream_metadata.lock import (
    LockOwner,
    decode_member,
    encode_member,
    member_owner,
    member_prefix,
    member_sequence,
    members_in_order,
)
from quire.errors import DamagedMetadata, InvalidArgument

OWNER = LockOwner("host/10.0.0.1", 0x100001234560007)
NAME = "member_host%2F10.0.0.1_s72057672225390599_0000000003"


def test_vector_l_is_apaches() -> None:
    assert member_prefix(OWNER) + "0000000003" == NAME
    assert member_owner(NAME) == OWNER
    assert member_sequence(NAME) == 3
    assert encode_member(OWNER) == b"host/10.0.0.1"
    assert decode_member(b"host/10.0.0.1", OWNER.session_id) == OWNER


@pytest.mark.parametrize(
    ("owner", "prefix"),
    [
        (LockOwner("a b", -1234567890123), "member_a+b_s-1234567890123_"),
        (LockOwner("a.-*b", 10**10), "member_a.-*b_s10000000000_"),
        (LockOwner("~+%", 10**10), "member_%7E%2B%25_s10000000000_"),
        (LockOwner("ü", 10**10), "member_%C3%BC_s10000000000_"),
        (LockOwner("a", 42), "member_a_s        42_"),
        (LockOwner("", 10**10), "member__s10000000000_"),
    ],
)
def test_client_ids_are_encoded_as_html_forms_are(owner: LockOwner, prefix: str) -> None:
    assert member_prefix(owner) == prefix
    assert member_owner(prefix + "0000000000") == owner


@pytest.mark.parametrize(
    "name",
    [
        "",
        "member_0000000003",
        "member_host_0000000003",
        "member_a_b_s72057672225390599_0000000003",
        "member_host_72057672225390599_0000000003",
        "member_host_s_0000000003",
        "member_host_s007205767222539_0000000003",
        "member_host_s99999999999999999999_0000000003",
        "member_host_s9223372036854775808_0000000003",
        "member_%zz_s72057672225390599_0000000003",
        "member_%ff_s72057672225390599_0000000003",
        "member_a/b_s72057672225390599_0000000003",
        "number_host_s72057672225390599_0000000003",
    ],
)
def test_a_name_that_no_owner_would_write_tells_none(name: str) -> None:
    assert member_owner(name) is None


def test_members_wait_in_the_order_of_their_numbers() -> None:
    names = ["member_b_s1_2147483647", "member_x", "member_0000000010", "member_a_0000000009", "member_c_-000000001"]
    assert members_in_order(names) == [
        "member_c_-000000001",
        "member_a_0000000009",
        "member_0000000010",
        "member_b_s1_2147483647",
        "member_x",
    ]
    assert [member_sequence(name) for name in ("member_x", "member_2147483648", "member_1 ", "")] == [None] * 4


def test_a_member_whose_data_is_no_text_is_damaged() -> None:
    with pytest.raises(DamagedMetadata, match="lock member: byte 0"):
        decode_member(b"\xff", 1)


@pytest.mark.parametrize(("client", "session"), [("\ud800", 1), ("a", 2**63), ("a", -(2**63) - 1)])
def test_an_owner_that_could_not_be_read_back_cannot_be_made(client: str, session: int) -> None:
    with pytest.raises(InvalidArgument):
        LockOwner(client, session)


@many_examples
@given(st.builds(LockOwner, st.text(max_size=8), INT64), st.integers(0, 2**31 - 1))
def test_a_name_leads_back_to_its_owner_unless_it_breaks_into_too_many_parts(owner: LockOwner, sequence: int) -> None:
    name = f"{member_prefix(owner)}{sequence:010d}"
    assert member_sequence(name) == sequence
    assert member_owner(name) == (None if "_" in owner.client_id else owner)
    assert decode_member(encode_member(owner), owner.session_id) == owner


@many_examples
@given(st.lists(st.text(alphabet="member_s0123456789-%+a ", max_size=30), max_size=5))
def test_any_names_can_be_ordered_and_asked_for_their_owner(names: list[str]) -> None:
    assert sorted(members_in_order(names)) == sorted(names)
    for owner in map(member_owner, names):
        assert owner is None or member_owner(member_prefix(owner) + "0000000000") == owner
