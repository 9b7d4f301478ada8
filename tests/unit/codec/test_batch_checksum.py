"""The checksum of a batch on its way to a proxy."""

from google_crc32c import extend
from hypothesis import given
from hypothesis import strategies as st

from quire.codec.batch_checksum import batch_checksum


@given(stream=st.text(max_size=10), records=st.lists(st.binary(max_size=20), max_size=5))
def test_it_covers_the_name_and_each_record_with_its_length(stream: str, records: list[bytes]) -> None:
    crc = extend(0, stream.encode())
    for record in records:
        crc = extend(extend(crc, len(record).to_bytes(4, "big")), record)
    assert batch_checksum(stream, records) == crc


def test_where_one_record_ends_matters() -> None:
    assert batch_checksum("s", [b"ab", b"c"]) != batch_checksum("s", [b"a", b"bc"])
    assert batch_checksum("s", [b""]) != batch_checksum("s", [])
    assert batch_checksum("orders", [b"paid", b"sent"]) == 0x52336D79
