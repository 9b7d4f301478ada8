"""A batch as a client sent it is checked as a whole, before anything of it is appended: it is taken, or it is not."""

from typing import Final

from quire.codec.batch_checksum import batch_checksum
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.producers import PRODUCER_ID_BYTES
from quire.codec.stream.record_sets import decode_record_set, record_set_bytes, record_set_count
from quire.codec.stream_metadata.names import stream_name
from quire.errors import ChecksumMismatch, DamagedEntry, InvalidArgument, InvalidName, RecordTooLarge
from quire.proxy.write.settings import WriteProxySettings
from quire.proxy.write.submissions import Submission
from quire.rpc.serving.transport import Caller

_SEQ_MAX: Final = 2**63 - 1


def checked_batch(batch: pb.Batch, settings: WriteProxySettings, caller: Caller, now_s: float) -> Submission:
    """Raises `InvalidName`, `InvalidArgument`, `RecordTooLarge` and `ChecksumMismatch`: nothing of it may be stored."""
    stream = stream_name(batch.stream)
    if stream != batch.stream:
        raise InvalidName(f"{batch.stream!r} is not the normal form of a stream's name", hint=f"Call it {stream!r}.")
    members = 0
    if batch.HasField("record_set"):
        if batch.records:
            raise InvalidArgument("a batch has records, or a record set, and not both")
        records = [batch.record_set.data]
        members = batch.record_set.count
        if members > settings.batch_records_max:
            raise RecordTooLarge(f"a record set of {members} members: {settings.batch_records_max} is the most")
    else:
        records = list(batch.records)
    if not records:
        raise InvalidArgument("a batch without records")
    if len(records) > settings.batch_records_max:
        raise RecordTooLarge(f"a batch of {len(records)} records: {settings.batch_records_max} is the most")
    sizes = list(map(len, records))
    if max(sizes) > settings.record_bytes_max:
        raise RecordTooLarge(f"a record of {max(sizes)} bytes: {settings.record_bytes_max} is the most")
    if sum(sizes) > settings.batch_bytes_max:
        raise RecordTooLarge(
            f"a batch of {sum(sizes)} bytes: {settings.batch_bytes_max} is the most", hint="Send fewer records at once."
        )
    if batch_checksum(batch.stream, records) != batch.crc32c:
        raise ChecksumMismatch(f"a batch for stream {stream!r} was damaged on its way", stream=stream)
    if members or batch.HasField("record_set"):
        _check_set(records[0], members, settings)
    return Submission(
        stream,
        records,
        members=members,
        txids=_txids(batch, len(records)),
        producer=_producer(batch),
        first_seq=batch.producer.first_seq,
        is_whole=batch.atomic,
        create_if_missing=batch.create_if_missing,
        tried=caller.tried,
        begun_s=now_s,
    )


def _check_set(data: bytes, members: int, settings: WriteProxySettings) -> None:
    """Whoever reads the stream has to take it apart: a set that cannot be would make the stream unreadable."""
    try:
        found, size = record_set_count(data), record_set_bytes(data)
        if size > settings.batch_bytes_max:
            raise RecordTooLarge(
                f"a record set of {size} bytes before compression: {settings.batch_bytes_max} is the most"
            )
        if found == members:  # So few that all of them may be looked at.
            decode_record_set(data)
    except DamagedEntry as error:
        raise InvalidArgument(f"the record set cannot be read: {error}") from error
    if found != members or not found:
        raise InvalidArgument(f"a record set of {members} records has {found}")


def _txids(batch: pb.Batch, records: int) -> list[int] | None:
    if not batch.txids:
        return None
    if len(batch.txids) != records:
        raise InvalidArgument(f"{records} records have {len(batch.txids)} txids", hint="Give one for each, or none.")
    return list(batch.txids)


def _producer(batch: pb.Batch) -> bytes | None:
    if not batch.HasField("producer"):
        return None
    if len(batch.producer.id) != PRODUCER_ID_BYTES:
        raise InvalidArgument(f"a producer's id has {PRODUCER_ID_BYTES} bytes, not {len(batch.producer.id)}")
    if not 0 < batch.producer.first_seq <= _SEQ_MAX - len(batch.records):
        raise InvalidArgument("a producer counts its records from 1 on")
    return batch.producer.id
