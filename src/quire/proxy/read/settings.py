"""What may be tuned about a read proxy."""

import math

from quire.errors import InvalidArgument
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class ReadProxySettings:
    """How much a read proxy keeps, and how much it takes on."""

    # --- Memory

    cache_bytes_max: int = 256 << 20
    """What is kept for readers to share: three quarters of it at the tails of streams,
    the rest for scans. Beyond it come two requests' worth of entries for each lane (see `lane_read_bytes`), and the
    newest chunk of each."""

    tail_age_s_max: float = 60.0
    """What is older at a tail goes, even if a reader has not come to it: it reads from storage then, on its own."""

    passed_s: float = 1.0
    """What all readers have passed stays for so long, for those who come a moment later."""

    # --- Reading from storage

    lane_read_bytes: int = 256 << 10
    """How much one request asks of a bookie. A lane has one of them in hand and one under way."""

    scan_lanes_max: int = 100
    """Lanes that read old entries at the same time. Who needs one more waits, then is refused. Lanes that nobody asks
    for anything make room."""

    cold_lanes_max: int = 32
    """Lanes that read archived segments at the same time. They are not counted among the others; each holds one part
    of a file, up to 8 MiB, beyond what it has in the cache."""

    cold_reads_max: int = 8
    """Requests to cold storage under way at the same time. The others wait, and in the end are refused."""

    tail_lanes_max: int = 2000
    """Streams whose tails are read at the same time."""

    lane_wait_s: float = 5.0
    """How long a reader waits for its lane before it is told to come back later."""

    tail_linger_s: float = 30.0
    """A tail is read for so long after its last reader went: readers that poll come again."""

    # --- Readers

    readers_max: int = 10_000
    """Calls of `Read`, and streams of sessions, open at the same time."""

    parked_fetches_max: int = 10_000
    """Calls of `Fetch` that wait at the same time."""

    session_streams_max: int = 256
    """Streams that one call of `ReadSession` reads."""

    openings_max: int = 64
    """Readers whose place is looked up at the same time: each asks the metadata, some ask bookies. The others wait.
    As many again may search for a txid or a time: that may ask cold storage."""

    frame_bytes: int = 256 << 10
    """How much a message carries unless its reader asks for more or less: one entry, or as many as fit."""

    frame_bytes_max: int = 4 << 20
    """The most that a reader may ask for."""

    idle_ping_s: float = 15.0
    """After so long without entries a reader is told its position, unless it asks for something else."""

    fetch_wait_s_max: float = 30.0
    """Longest wait of one `Fetch`."""

    tail_bytes_per_s_max: float = math.inf
    """For all readers at tails together. Beyond it they are slowed down, not refused."""

    scan_bytes_per_s_max: float = math.inf
    """The same for all others that read what bookies have."""

    cold_bytes_per_s_max: float = math.inf
    """The same for those who read archived segments."""

    # --- Many readers of one stream

    fan_out_s_per_reader: float = 30e-6
    """What a message may cost, at both ends together. A lane with many readers gives each of them one at intervals of
    this times their number, with all that came meanwhile."""

    fan_out_interval_s_max: float = 0.1
    """However many there are, none waits longer than that on purpose."""

    # --- Positions

    commit_interval_s: float = 1.0
    """A subscription's position is written that often at most. Commits that come sooner
    wait, and are written as one."""

    # --- What is told

    stream_metrics: bool = False
    """Whether metrics have a line for each stream that is read: for proxies with few of them."""

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise InvalidArgument(f"a read proxy cannot be run like that: {problem}")

    def _problem(self) -> str | None:
        if self.cache_bytes_max < 8 << 10:
            return "its cache has to have room for a few small entries"
        lanes = (self.scan_lanes_max, self.tail_lanes_max, self.cold_lanes_max, self.cold_reads_max)
        counts = (*lanes, self.readers_max, self.parked_fetches_max)
        sizes = (self.session_streams_max, self.openings_max, self.lane_read_bytes, self.frame_bytes)
        if min(*counts, *sizes) < 1 or self.frame_bytes_max < self.frame_bytes:
            return "there has to be room for one of everything"
        times = (self.passed_s, self.tail_linger_s, self.lane_wait_s, self.commit_interval_s, self.tail_age_s_max)
        if min(times) < 0 or self.idle_ping_s <= 0 or self.fetch_wait_s_max <= 0:
            return "times are counted from 0"
        if min(self.fan_out_s_per_reader, self.fan_out_interval_s_max) < 0:
            return "readers cannot be told before there is something to tell"
        if min(self.tail_bytes_per_s_max, self.scan_bytes_per_s_max, self.cold_bytes_per_s_max) <= 0:
            return "readers have to get something"
        return None
