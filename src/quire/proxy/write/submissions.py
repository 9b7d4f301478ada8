"""A batch of records on its way into its stream, and the tag that tells which of its producer's they are."""

from collections.abc import Callable, Sequence
from typing import Protocol

from quire.codec.stream.producers import TAG_BYTES, ProducerTag, encode_tag
from quire.errors import QuireError
from quire.stream.dlsn_runs import PlacedRun


class Appends(Protocol):
    """A stream that is served."""

    def append(self, submission: "Submission") -> None:
        """Append the records, or refuse them."""


class Submission:
    """A batch of records that was checked, on its way into its stream. `on_decided` is told what became of it:

    runs        where its records are, if there is no error; none if it is a duplicate whose places are forgotten
    error       why it was refused, or why nobody knows
    """

    __slots__ = (
        "begun_s",
        "create_if_missing",
        "error",
        "first_seq",
        "handed_over_s",
        "is_duplicate",
        "is_whole",
        "may_append",
        "members",
        "on_decided",
        "producer",
        "records",
        "runs",
        "size_bytes",
        "stream",
        "tried",
        "txid_first",
        "txid_last",
        "txids",
    )

    def __init__(
        self,
        stream: str,
        records: Sequence[bytes],
        *,
        members: int,
        txids: Sequence[int] | None,
        producer: bytes | None,
        first_seq: int,
        is_whole: bool,
        create_if_missing: bool,
        tried: Sequence[str],
        begun_s: float,
    ) -> None:
        self.stream, self.records, self.members, self.txids = stream, records, members, txids
        self.producer, self.first_seq, self.is_whole = producer, first_seq, is_whole
        self.create_if_missing, self.tried, self.begun_s = create_if_missing, tried, begun_s
        self.size_bytes = sum(map(len, records))
        self.handed_over_s = begun_s
        self.may_append: Callable[[], bool] | None = None  # Whether nothing before it in its call has failed.
        self.on_decided: Callable[[Submission], None] | None = None
        self.error: QuireError | None = None
        self.runs: list[PlacedRun] = []
        self.is_duplicate = False
        self.txid_first = self.txid_last = 0

    @property
    def count(self) -> int:
        """How many records a reader will see."""
        return self.members or len(self.records)

    def begin(self, serving: Appends) -> None:
        serving.append(self)

    def refuse(self, error: QuireError) -> None:
        self.error = error
        self.decide()

    def decide(self) -> None:
        """It is clear what became of it."""
        on_decided, self.on_decided = self.on_decided, None
        if on_decided is not None:
            on_decided(self)


class BatchTag:
    """Tells, beside the records of a batch, which of its producer's they are."""

    __slots__ = ("_first_seq", "_members", "_producer")
    size_bytes = TAG_BYTES

    def __init__(self, producer: bytes, first_seq: int, members: int) -> None:
        self._producer, self._first_seq, self._members = producer, first_seq, members

    def payload(self, begin: int, end: int) -> bytes:
        return encode_tag(ProducerTag(self._producer, self._first_seq + begin, self._members or end - begin))
