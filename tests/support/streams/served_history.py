"""What clients of proxies were told, and the proof that it is true. The checker of the specification's Appendix B.

  NothingLost       every record that was acknowledged is in the stream, at the place that was told
  NothingTwice      no record is there twice, unless its writer may send again what may have been stored
  NothingRefused    a record of which it was said that nothing was stored is not there
  InOrder           the records of each writer are in the order of its appends
  AllReadersAgree   each reader was given every record of the stream, once, in its order, and nothing else
  ConfirmedOnly     no reader was given an entry before an ack quorum had it

Streams are read for it without proxies. A record's payload says whose it is, and which of its records.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from quire.codec.stream.records import LogRecord
from quire.errors import Outcome, QuireError
from quire.types import DLSN, INITIAL_DLSN


@dataclass
class Written:
    """What one writer sent to one stream, and what it was told."""

    name: str
    stream: str
    may_repeat: bool = False
    """Whether its records may be there twice: it sends again what may have been stored, without producer ids."""
    sent: int = 0
    acked: dict[int, DLSN] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)

    def payloads(self, count: int) -> list[bytes]:
        """The next records to append."""
        first, self.sent = self.sent, self.sent + count
        return [b"%s/%d" % (self.name.encode(), number) for number in range(first, self.sent)]

    def on_stored(self, payloads: list[bytes], dlsns: list[DLSN]) -> None:
        self.acked.update(zip(map(number_of, payloads), dlsns, strict=True))

    def on_failed(self, payloads: list[bytes], error: QuireError) -> None:
        if error.outcome is Outcome.NOT_APPLIED:
            self.refused.update(map(number_of, payloads))


@dataclass
class Followed:
    """What one reader was given of one stream, from its first record on."""

    name: str
    stream: str
    records: list[LogRecord] = field(default_factory=list)


@dataclass
class History:
    """All writers and readers of one run."""

    written: list[Written] = field(default_factory=list)
    followed: list[Followed] = field(default_factory=list)

    def prove(self, stream: str, stored: list[LogRecord], *, begin: DLSN = INITIAL_DLSN) -> None:
        """`stored` is the stream from `begin` on: everything before was truncated, with all readers behind it."""
        places = [record.dlsn for record in stored]
        assert places == sorted(set(places)), "InOrder: the stream itself is out of order"
        for reader in self.followed:
            if reader.stream == stream:
                _prove_followed(reader, stored, begin)
        for writer in self.written:
            if writer.stream == stream:
                _prove_written(writer, stored, begin)


def number_of(payload: bytes) -> int:
    return int(payload.rpartition(b"/")[2])


def _prove_written(writer: Written, stored: list[LogRecord], begin: DLSN) -> None:
    own = [record for record in stored if record.payload.startswith(b"%s/" % writer.name.encode())]
    by_place = {record.dlsn: number_of(record.payload) for record in own}
    numbers = list(by_place.values())
    who = f"{writer.name} of {writer.stream}"
    for number, dlsn in writer.acked.items():
        if dlsn >= begin:
            assert by_place.get(dlsn) == number, f"NothingLost: {number} of {who}, acknowledged at {dlsn}"
    twice = sorted(number for number in set(numbers) if numbers.count(number) > 1)
    assert not twice or writer.may_repeat, f"NothingTwice: {twice} of {who}"
    refused = writer.refused & set(numbers)
    assert not refused, f"NothingRefused: {sorted(refused)} of {who}"
    firsts = list(dict.fromkeys(numbers))
    assert firsts == sorted(firsts), f"InOrder: {firsts} of {who}"


def _prove_followed(reader: Followed, stored: list[LogRecord], begin: DLSN) -> None:
    seen = [record for record in reader.records if record.dlsn >= begin]
    who = f"{reader.name} of {reader.stream}"
    assert reader.records[-len(seen) :] == seen or not seen, f"AllReadersAgree: {who} went back"
    assert _shown(seen) == _shown(stored), f"AllReadersAgree: {who}: {_difference(seen, stored)}"
    hidden = [record.dlsn for record in reader.records if record.dlsn < begin]
    assert hidden == sorted(set(hidden)), f"AllReadersAgree: {who} is out of order"


def _shown(records: Iterable[LogRecord]) -> list[tuple[DLSN, int, bytes]]:
    return [(record.dlsn, record.txid, record.payload) for record in records]


def _difference(seen: list[LogRecord], stored: list[LogRecord]) -> str:
    for place, (one, other) in enumerate(zip(seen, stored, strict=False)):
        if one != other:
            return f"at {place} it was given {one}, and there is {other}"
    return f"it was given {len(seen)} records, and there are {len(stored)}"
