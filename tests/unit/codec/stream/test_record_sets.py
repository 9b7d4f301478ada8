"""Record sets: Apache's bytes, limits, and no member that goes missing."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import many_examples, some_examples
from tests.unit.codec.stream import vectors

from quire.codec.stream.compression import Compression, compressed
from quire.codec.stream.limits import EXPANDED_BYTES_MAX, MEMBER_BYTES_MAX, MEMBER_COST_BYTES, PAYLOAD_BYTES_MAX
from quire.codec.stream.record_sets import decode_record_set, encode_record_set, expanded_bytes, record_set_count
from quire.errors import DamagedEntry, InvalidArgument

MEMBERS = [b"r0", b"rec1"]
HEADER_BYTES = 16


@pytest.mark.parametrize(
    ("compression", "data"), [(Compression.NONE, vectors.SET_G), (Compression.LZ4, vectors.SET_G_LZ4)]
)
def test_vector_g(compression: Compression, data: bytes) -> None:
    assert encode_record_set(MEMBERS, compression=compression) == data
    assert decode_record_set(data) == MEMBERS
    assert record_set_count(data) == 2


@some_examples
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=9), st.sampled_from(Compression), st.binary(max_size=3))
def test_members_are_read_back(payloads: list[bytes], compression: Compression, behind: bytes) -> None:
    """Bytes behind the stored ones are not part of the set, as in an envelope."""
    data = encode_record_set(payloads, compression=compression) + behind
    assert decode_record_set(data) == payloads
    assert record_set_count(data) == len(payloads)


def test_apaches_empty_set_is_read_and_ours_is_refused() -> None:
    assert decode_record_set(pack(">IIII", 0x1000, 0, 0, 0)) == []
    with pytest.raises(InvalidArgument, match="needs members"):
        encode_record_set([])


def test_a_set_has_to_fit_into_a_record() -> None:
    fits = bytes(PAYLOAD_BYTES_MAX - HEADER_BYTES - 4)
    assert len(encode_record_set([fits])) == PAYLOAD_BYTES_MAX
    with pytest.raises(InvalidArgument, match="does not fit into a record") as caught:
        encode_record_set([fits + b"x"])
    assert caught.value.facts == {"bytes": PAYLOAD_BYTES_MAX + 1, "bytes_max": PAYLOAD_BYTES_MAX}


def test_a_member_has_its_largest_size() -> None:
    """Compression makes room for a member that would not fit by itself; a still larger one Apache refuses."""
    largest = bytes(MEMBER_BYTES_MAX)
    assert decode_record_set(encode_record_set([largest], compression=Compression.LZ4)) == [largest]
    with pytest.raises(InvalidArgument, match="a member of 1040385 bytes is too large"):
        encode_record_set([largest + b"x"], compression=Compression.LZ4)


def test_a_set_that_is_cut_short_is_damaged() -> None:
    for data in (vectors.SET_G, vectors.SET_G_LZ4):
        for size in range(HEADER_BYTES):
            for decode in (decode_record_set, record_set_count):
                with pytest.raises(DamagedEntry, match=f"a record set has {size} bytes, 16 is the least"):
                    decode(data[:size])
        for size in range(HEADER_BYTES, len(data)):
            with pytest.raises(DamagedEntry, match="should follow its header"):
                decode_record_set(data[:size])


@pytest.mark.parametrize("metadata", [0, 0x2000, 0xF000])
def test_other_versions_are_damage(metadata: int) -> None:
    data = pack(">I", metadata) + vectors.SET_G[4:]
    for decode in (decode_record_set, record_set_count):
        with pytest.raises(DamagedEntry, match="not version 1"):
            decode(data)


@pytest.mark.parametrize("codec", [2, 3])
def test_codecs_that_do_not_exist_are_damage(codec: int) -> None:
    with pytest.raises(DamagedEntry, match=f"codec {codec} does not exist"):
        decode_record_set(pack(">I", 0x1000 | codec) + vectors.SET_G[4:])


@pytest.mark.parametrize("count", [0, 1, 3, 2**32 - 1])
def test_members_fill_the_set_exactly(count: int) -> None:
    """Neither a member that is not there nor bytes that belong to none are passed over."""
    with pytest.raises(DamagedEntry, match=f"{count} members do not fill the 14 bytes"):
        decode_record_set(vectors.SET_G[:4] + pack(">I", count) + vectors.SET_G[8:])


def test_a_member_does_not_reach_beyond_the_set() -> None:
    for size in (1, 3, 2**31, 2**32 - 1):
        data = vectors.SET_G[:16] + pack(">I", size) + vectors.SET_G[20:]
        with pytest.raises(DamagedEntry, match="2 members do not fill the 14 bytes"):
            decode_record_set(data + bytes(8))


def test_a_length_that_lz4_cannot_reach_is_damage() -> None:
    """Nothing is set aside for it: a number alone must not cost memory."""
    data = pack(">IIII", 0x1001, 1, 2**32 - 1, 15) + vectors.SET_G_LZ4[16:]
    with pytest.raises(DamagedEntry, match="15 bytes of LZ4 are not those of 4294967295"):
        decode_record_set(data)


def test_a_set_that_would_become_far_too_much_is_neither_written_nor_read() -> None:
    """A kilobyte of LZ4 stands for a quarter of a megabyte, which is 65,000 members if they are empty."""
    most = [b""] * (EXPANDED_BYTES_MAX // (4 + MEMBER_COST_BYTES))
    assert decode_record_set(encode_record_set(most, compression=Compression.LZ4)) == most
    with pytest.raises(InvalidArgument, match="before compression, is too large") as caught:
        encode_record_set([*most, b""], compression=Compression.LZ4)
    assert caught.value.facts["bytes_max"] == EXPANDED_BYTES_MAX
    members = bytes(4 * (len(most) + 1))
    stored = compressed(members, Compression.LZ4)
    bomb = pack(">IIII", 0x1001, len(members) // 4, len(members), len(stored)) + stored
    with pytest.raises(DamagedEntry, match="is the most"):
        decode_record_set(bomb)
    assert expanded_bytes(bomb) > EXPANDED_BYTES_MAX


@many_examples
@given(
    st.sampled_from([0x1000, 0x1001, 0x1002]),
    st.integers(0, 5),
    st.integers(0, 40),
    st.binary(max_size=40),
    st.binary(max_size=20),
)
def test_any_bytes_are_read_or_damaged(metadata: int, count: int, length: int, stored: bytes, other: bytes) -> None:
    for data in (
        other,
        pack(">IIII", metadata, count, length, len(stored)) + stored,
        pack(">IIII", metadata, count, len(stored), len(stored)) + stored,
    ):
        try:
            assert all(type(member) is bytes for member in decode_record_set(data))
        except DamagedEntry as error:
            assert str(error)
