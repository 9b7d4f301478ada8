"""What waits becomes entries that readers take."""

from quire.codec.stream.compression import Compression
from quire.codec.stream.entries import decode_entry, encode_entry
from quire.codec.stream.limits import RECORDS_BYTES_MAX
from quire.codec.stream.record_sets import encode_record_set
from quire.codec.stream.records import RECORD_SET, encode_record
from quire.stream.record_queue import Pushed, RecordQueue
from quire.types import EntryId, Lssn


def test_record_sets_go_into_another_entry_before_too_much_would_become_of_one() -> None:
    """Method: a hundred sets that are small in an entry, and a megabyte each once they are taken apart."""
    record_set = encode_record_set([bytes(1_000_000)], compression=Compression.LZ4)
    queue, entries = RecordQueue(), list[int]()
    for _ in range(100):
        queue.push(Pushed([record_set], [5], members=1))
    while queue.records:
        parts, count, _ = queue.take(RECORDS_BYTES_MAX)
        sets = [encode_record(part.call.payloads[0], txid=5, position=1, flags=RECORD_SET) for part in parts]
        assert len(decode_entry(encode_entry(sets), lssn=Lssn(1), entry_id=EntryId(0))) == count
        entries.append(count)
    assert sum(entries) == 100
    assert len(entries) == 2
