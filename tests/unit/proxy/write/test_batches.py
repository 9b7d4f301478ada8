"""A batch is checked as a whole before anything of it is appended."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.proxies.write_world import batch

from quire.codec.batch_checksum import batch_checksum
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.compression import Compression
from quire.codec.stream.record_sets import encode_record_set
from quire.errors import ChecksumMismatch, InvalidArgument, InvalidName, RecordTooLarge
from quire.proxy.write.batches import checked_batch
from quire.proxy.write.settings import WriteProxySettings
from quire.proxy.write.submissions import Submission
from quire.rpc.serving.transport import Caller

LZ4 = Compression.LZ4
SETTINGS = WriteProxySettings(record_bytes_max=100, batch_bytes_max=250, batch_records_max=5)


def checked(*records: bytes, stream: str = "s", settings: WriteProxySettings = SETTINGS, **options: Any) -> Submission:
    return checked_batch(batch(stream, *records, **options), settings, Caller("c", tried=("h:1",)), now_s=7.0)


def test_what_is_sent_is_what_is_appended() -> None:
    found = checked(b"a", b"bc", txids=[1, 2], atomic=True, producer=pb.Producer(id=bytes(16), first_seq=9))
    assert (found.stream, list(found.records), found.txids, found.is_whole) == ("s", [b"a", b"bc"], [1, 2], True)
    assert (found.producer, found.first_seq, found.count, found.size_bytes) == (bytes(16), 9, 2, 3)
    assert (found.create_if_missing, found.tried, found.begun_s) == (True, ("h:1",), 7.0)
    assert (checked(b"").txids, checked(b"").producer) == (None, None)


@pytest.mark.parametrize(
    ("records", "options", "error"),
    [
        ([], {}, InvalidArgument),
        ([bytes(101)], {}, RecordTooLarge),
        ([bytes(100)] * 3, {}, RecordTooLarge),
        ([b"x"] * 6, {}, RecordTooLarge),
        ([b"x"], {"crc32c": 0}, ChecksumMismatch),
        ([b"x", b"y"], {"txids": [1]}, InvalidArgument),
        ([b"x"], {"producer": pb.Producer(id=b"short", first_seq=1)}, InvalidArgument),
        ([b"x"], {"producer": pb.Producer(id=bytes(16), first_seq=0)}, InvalidArgument),
        ([b"x"], {"producer": pb.Producer(id=bytes(16), first_seq=2**63)}, InvalidArgument),
        ([b"x"], {"stream": ""}, InvalidName),
        ([b"x"], {"stream": "/s"}, InvalidName),
        ([b"x"], {"stream": "a//b"}, InvalidName),
        ([b"x"], {"stream": ".hidden"}, InvalidName),
    ],
)
def test_what_is_wrong_with_a_batch_is_found_at_once(
    records: list[bytes], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        checked(*records, **options)


def test_the_checksum_covers_the_name_and_where_records_begin() -> None:
    right = batch_checksum("s", [b"ab", b"c"])
    checked(b"ab", b"c", crc32c=right)
    for records, stream in (((b"a", b"bc"), "s"), ((b"ab", b"c"), "t"), ((b"ab",), "s")):
        with pytest.raises(ChecksumMismatch):
            checked(*records, stream=stream, crc32c=right)


@pytest.mark.parametrize("data", [b"", b"no set", encode_record_set([b"a", b"b"])[:-1]])
def test_a_record_set_that_nobody_could_read_is_refused(data: bytes) -> None:
    sent = pb.RecordSet(count=2, data=data)
    with pytest.raises(InvalidArgument):
        checked(record_set=sent, crc32c=batch_checksum("s", [data]))


def test_a_record_set_has_as_many_records_as_it_says() -> None:
    data = encode_record_set([b"a", b"b"])
    crc = batch_checksum("s", [data])
    assert checked(record_set=pb.RecordSet(count=2, data=data), crc32c=crc).count == 2
    for count in (0, 1, 3):
        with pytest.raises(InvalidArgument):
            checked(record_set=pb.RecordSet(count=count, data=data), crc32c=crc)
    with pytest.raises(InvalidArgument, match="not both"):
        checked(b"x", record_set=pb.RecordSet(count=2, data=data))


def test_a_record_set_has_no_more_members_than_a_batch_has_records() -> None:
    """It is refused by its number of members, before one of them is looked at."""
    most = encode_record_set([b""] * 5)
    assert checked(record_set=pb.RecordSet(count=5, data=most), crc32c=batch_checksum("s", [most])).count == 5
    for data, count in ((encode_record_set([b""] * 6), 6), (encode_record_set([b""] * 20, compression=LZ4), 20)):
        with pytest.raises(RecordTooLarge, match=f"{count} members: 5 is the most"):
            checked(record_set=pb.RecordSet(count=count, data=data), crc32c=batch_checksum("s", [data]))
        with pytest.raises(InvalidArgument, match=f"of 5 records has {count}"):
            checked(record_set=pb.RecordSet(count=5, data=data), crc32c=batch_checksum("s", [data]))


def test_a_record_set_has_no_more_bytes_than_a_batch_however_it_was_compressed() -> None:
    for sizes, fits in (((100, 100, 50), True), ((100, 100, 51), False)):
        data = encode_record_set([bytes(size) for size in sizes], compression=LZ4)
        options: dict[str, Any] = {
            "crc32c": batch_checksum("s", [data]),
            "record_set": pb.RecordSet(count=3, data=data),
        }
        if fits:
            assert checked(**options).count == 3
        else:
            with pytest.raises(RecordTooLarge, match="251 bytes before compression: 250 is the most"):
                checked(**options)


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"window_bytes": 0}, {"record_bytes_max": 1 << 21}, {"service_timeout_s": -1}):
        with pytest.raises(InvalidArgument):
            replace(SETTINGS, **wrong)  # type: ignore[arg-type]
