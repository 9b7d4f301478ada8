"""What may be tuned about a ledger client."""

from dataclasses import dataclass

from quire.codec.wire.frames import FRAME_BYTES_MAX
from quire.errors import InvalidArgument


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

    change_timeout_s: float = 30.0
    """Longest time for replacing failed bookies, before the writer gives up."""

    ensemble_changes_max: int = 1000
    """How often one writer replaces bookies before it gives up: something else must be wrong then."""

    delay_ensemble_change: bool = False
    """Whether to replace a bookie only when entries cannot reach their ack quorum without it."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    """The bookies' limit for one frame. Entries that do not fit are refused before anything is sent."""

    def __post_init__(self) -> None:
        if min(self.window_entries_max, self.window_bytes_max, self.replica_bytes_max, self.read_ahead_bytes) < 1:
            raise InvalidArgument("a ledger client needs room for at least one entry")
