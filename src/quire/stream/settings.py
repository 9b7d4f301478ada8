"""What may be tuned about streams, their writers and their readers.

Names and defaults are chosen for programs that await each append; docs/guide/streams.md names Apache's setting for each
one. All clients of a stream should agree on `digest` and `password`; everything else may differ from client to client.
"""

import math
from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Final, Literal, Self, TypedDict

from quire.codec.stream.compression import Compression
from quire.codec.stream.limits import RECORDS_BYTES_MAX
from quire.codec.stream_metadata.segment import REGION_MAX
from quire.errors import InvalidArgument
from quire.protocol.segments import SEGMENT_BYTES_MAX
from quire.types import DigestType, Quorum
from quire.values import dataclass

TransmitPolicy = Literal["immediate", "outstanding", "periodic"]

_HOUR_S: Final = 3600.0
_COMPRESSIONS: Final = {"none": Compression.NONE, "lz4": Compression.LZ4}


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How a stream is written and read by this client."""

    # --- Ledgers

    ensemble: int = 3
    """Bookies that a new segment is spread over."""

    write_quorum: int = 3
    """Bookies that get each entry."""

    ack_quorum: int = 2
    """Bookies that must have an entry on disk before it counts."""

    digest: DigestType = DigestType.CRC32
    """Checksum of entries. Apache's clients write CRC32; they read others only if they look into the metadata."""

    password: bytes = field(default=b"", repr=False)
    """Of all ledgers of the stream. Apache's default is the empty one."""

    # --- When records leave the writer

    transmit: TransmitPolicy = "immediate"
    """`immediate`: what is appended in one turn of the loop is one entry. `outstanding`: when more than `buffer_bytes`
    wait. `periodic`: every `flush_interval_s`. `flush` sends what waits under each of them."""

    entry_bytes: int = 64 << 10
    """Most bytes of records in one entry, but for a record that is larger by itself."""

    buffer_bytes: int = 1024
    """With `outstanding`: how much waits before an entry is sent."""

    flush_interval_s: float = 0.01
    """With `periodic`: how often an entry is sent."""

    in_flight_entries: int = 8
    """With `immediate`: while so many entries are unacknowledged, records gather for the next one. Latency stays that
    of a round trip, and entries grow with the load."""

    commit_delay_s: float = 0.001
    """An entry is visible to readers when the one after it is sent. If none is after so long, a control record is."""

    keepalive_s: float = 0.0
    """A control record is sent if nothing was for so long. 0 for never."""

    compression: Literal["none", "lz4"] = "none"
    """Of entries."""

    # --- How much waits

    window_records_max: int = 200_000
    """Records that wait to be sent or acknowledged. Beyond it `append` waits."""

    window_bytes_max: int = 32 << 20
    """The same in bytes."""

    # --- Segments

    roll_interval_s: float = 2 * _HOUR_S
    """A segment is that old before the next one is begun. 0: roll by size."""

    roll_bytes: int = SEGMENT_BYTES_MAX
    """A segment is that large before the next one is begun, if `roll_interval_s` is 0."""

    retention_s: float = 0.0
    """Completed segments older than that are deleted. 0 keeps them: nothing is deleted that nobody asked to."""

    retention_bytes: int = 0
    """The oldest completed segments are deleted while the stream has more than this. 0 keeps them."""

    truncated_only: bool = False
    """Whether retention deletes only segments that were truncated by the application before."""

    region: int = 0
    """Stored with each segment if the namespace's binding says so: 0 to 15."""

    # --- Owning

    create_if_missing: bool = True
    """Whether opening a writer creates the stream."""

    write_lock: bool = True
    """Whether writers wait for each other. Without it the last one who opens takes the stream over."""

    lock_timeout_s: float = 30.0
    """How long opening a writer waits for another one to go. 0: not at all."""

    # --- Reading

    read_ahead_bytes_max: int = 8 << 20
    """What a reader keeps ready, in bytes of entries. One entry more may be under way."""

    expand_sets: bool = True
    """Whether readers take record sets apart."""

    skip_damaged: bool = False
    """Whether readers go on behind an entry of which no replica can be read. It is reported all the same."""

    idle_s: float = 120.0
    """After so long without an entry a reader reads the stream's metadata again."""

    idle_error_s: float = math.inf
    """After so long without a record `ReaderIdle` is raised to whoever waits for one."""

    # --- Everything

    call_timeout_s: float = 60.0
    """Longest time for opening, rolling, completing, truncating and the like, whatever is down."""

    def __post_init__(self) -> None:
        for name in _KINDS:
            check_kind(name, getattr(self, name))
        problem = self._problem()
        if problem:
            raise InvalidArgument(f"a stream cannot be used like that: {problem}")

    @property
    def quorum(self) -> Quorum:
        return Quorum(self.ensemble, self.write_quorum, self.ack_quorum)

    @property
    def codec(self) -> Compression:
        return _COMPRESSIONS[self.compression]

    def with_copies_at_most(self, bookies: int) -> Self:
        """The same where there are only so many bookies: as many copies, and acknowledgements, as there can be."""
        ensemble, write_quorum = min(self.ensemble, bookies), min(self.write_quorum, bookies)
        ack_quorum = min(self.ack_quorum, write_quorum)
        return replace(self, ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)

    def _problem(self) -> str | None:
        _ = self.quorum  # Raises by itself.
        if self.transmit not in ("immediate", "outstanding", "periodic"):
            return f"{self.transmit!r} is no transmit policy"
        if self.compression not in _COMPRESSIONS:
            return f"compression {self.compression!r} does not exist"
        if not 0 < self.entry_bytes <= RECORDS_BYTES_MAX:
            return f"an entry takes 1 to {RECORDS_BYTES_MAX} bytes of records, not {self.entry_bytes}"
        if min(self.window_records_max, self.window_bytes_max, self.read_ahead_bytes_max, self.in_flight_entries) < 1:
            return "there must be room for at least one record"
        if self.transmit == "periodic" and not 0 < self.flush_interval_s < math.inf:
            return f"{self.flush_interval_s} s is no interval"
        if self.buffer_bytes < 0 or self.retention_bytes < 0:
            return "bytes are counted from 0"
        if not 0 <= self.region <= REGION_MAX:
            return f"regions are numbered from 0 to {REGION_MAX}"
        times = (self.commit_delay_s, self.keepalive_s, self.roll_interval_s, self.retention_s, self.lock_timeout_s)
        if not all(0 <= seconds < math.inf for seconds in times) or not 0 < self.call_timeout_s < math.inf:
            return "times are counted from 0, and calls have to end"
        if self.idle_s <= 0 or self.idle_error_s <= 0:
            return "a reader waits longer than 0 s"
        return None


class StreamOverrides(TypedDict, total=False):
    """Settings for one writer or one reader alone: the fields of `StreamSettings`, for type checkers."""

    ensemble: int
    write_quorum: int
    ack_quorum: int
    digest: DigestType
    password: bytes
    transmit: TransmitPolicy
    entry_bytes: int
    buffer_bytes: int
    flush_interval_s: float
    in_flight_entries: int
    commit_delay_s: float
    keepalive_s: float
    compression: Literal["none", "lz4"]
    window_records_max: int
    window_bytes_max: int
    roll_interval_s: float
    roll_bytes: int
    retention_s: float
    retention_bytes: int
    truncated_only: bool
    region: int
    create_if_missing: bool
    write_lock: bool
    lock_timeout_s: float
    read_ahead_bytes_max: int
    expand_sets: bool
    skip_damaged: bool
    idle_s: float
    idle_error_s: float
    call_timeout_s: float


_KINDS: Final[Mapping[str, type]] = {each.name: type(each.default) for each in fields(StreamSettings)}
_KIND_NAMES: Final[Mapping[type, str]] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    bytes: "bytes",
    DigestType: "a DigestType",
}


def check_kind(name: str, value: object) -> None:
    """Raises `InvalidArgument` for a value that the setting cannot have, such as text for a number."""
    kind = _KINDS[name]
    fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
    if not fits or (kind is not bool and isinstance(value, bool)):  # Which Python takes for numbers.
        shown = type(value).__name__ if kind is bytes else repr(value)  # A password is not for logs.
        raise InvalidArgument(f"{name} takes {_KIND_NAMES[kind]}, not {shown}", setting=name)
