"""What may be tuned about a ledger client."""

import math

from quire.codec.wire.frames import FRAME_BYTES_MAX
from quire.errors import InvalidArgument
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """How much a writer has in flight, and how patient readers and writers are."""

    window_entries_max: int = 10_000
    """Entries that may wait for their quorum. Beyond it `append` waits."""

    window_bytes_max: int = 32 << 20
    """The same in bytes of payload: bounds the memory of a writer."""

    replica_bytes_max: int = 16 << 20
    """What may wait to be sent to one bookie before it is replaced: the others go on, and memory has an end."""

    read_ahead_bytes: int = 1 << 20
    """How much one request asks of a bookie when entries are read in order."""

    read_timeout_s: float = 5.0
    """Longest wait for one bookie's answer before the next one is asked."""

    speculative_read_s: float = 2.0
    """How long to wait for one bookie before another one is asked too. 0 for never."""

    speculative_read_s_max: float = 2.0
    """The wait doubles with each bookie that is asked too, up to this. Apache's clients do not let it grow either."""

    read_ahead_entries_max: int = 500
    """Most entries that are asked for at once when each is a request of its own: sizes are known only afterwards."""

    batch_reads: bool = True
    """Whether to ask for many entries in one request where all bookies have all entries. Bookies before 4.17 close the
    connection over it; readers notice and go on without, but a writer in the same client loses it, too."""

    sticky_reads: bool = False
    """Whether a reader stays with one bookie while that one answers, where all bookies have all entries: their caches
    and disks then see readers in order. Otherwise reads go round the ensemble."""

    poll_s: float = 10.0
    """How long a bookie is asked to wait for the next entry before it answers that there is none."""

    speculative_poll_s: float = 1.5
    """How long to wait at one bookie for the next entry before another one is asked too. 0 for never."""

    speculative_poll_s_max: float = 5.0
    """The wait doubles with each bookie that is asked too, up to this."""

    poll_pause_s_max: float = 1.0
    """Longest pause between polls that bookies answer at once without news: of a ledger that is fenced and not closed,
    or that they do not know yet. The first pause is a fraction of it."""

    read_patience_s: float = 30.0
    """How long whoever follows a ledger tries to read an entry, or to reach any bookie, before it raises the error.
    If no copy of an entry is left that is at once."""

    change_timeout_s: float = 30.0
    """Longest time for replacing failed bookies, before the writer gives up."""

    ensemble_changes_max: int = 1000
    """How often one writer replaces bookies before it gives up: something else must be wrong then."""

    delay_ensemble_change: bool = False
    """Whether to replace a bookie only when entries cannot reach their ack quorum without it."""

    append_timeout_s: float = 60.0
    """How long the oldest entry in flight may be without its ack quorum before the writer gives up."""

    explicit_lac_interval_s: float = 0.0
    """How often a writer tells bookies what is confirmed when no entry did: readers see the last entry of a pause then.
    0 for never."""

    call_timeout_s: float = 60.0
    """Longest time that creating, opening, recovering or deleting a ledger takes, whatever is down."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    """The bookies' limit for one frame. Entries that do not fit are refused before anything is sent."""

    def __post_init__(self) -> None:
        if min(self.window_entries_max, self.window_bytes_max, self.replica_bytes_max, self.read_ahead_bytes) < 1:
            raise InvalidArgument("a ledger client needs room for at least one entry")
        if not 0 < self.append_timeout_s < math.inf or not 0 <= self.explicit_lac_interval_s < math.inf:
            raise InvalidArgument("appends wait longer than 0 s, and what is confirmed is told every so often or never")
        if not 0 < self.call_timeout_s < math.inf:
            raise InvalidArgument(f"{self.call_timeout_s} s is no time for a call", hint="Give seconds above 0.")
        if min(self.read_ahead_entries_max, self.poll_s, self.poll_pause_s_max) <= 0 or self.read_patience_s < 0:
            raise InvalidArgument("readers ask for at least one entry, and wait longer than 0 s between two polls")
