"""What may be tuned about autorecovery. The defaults are Apache's, but for the rate, which has none there."""

import math

from quire.errors import InvalidArgument
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class AutorecoverySettings:
    """When ledgers are looked at, how patient repairs are, and how fast."""

    lost_bookie_delay_s: int = 0
    """How long a single lost bookie is waited for. Stored with the cluster if nothing is stored there: from then on
    `quire autorecovery delay` changes it."""

    bookie_check_interval_s: float = 86_400.0
    """Between two searches for bookies that ledgers name and that do not live. Also at the start. 0: never."""

    ledger_check_interval_s: float = 604_800.0
    """Between two checks of all ledgers, which ask every bookie for entries of every fragment. 0: never."""

    placement_check_interval_s: float = 0.0
    """Between two counts of closed ledgers whose bookies stand where the placement policy does not want them."""

    replicas_check_interval_s: float = 0.0
    """Between two counts of ledgers whose entries have too few copies, by what bookies list. It changes nothing."""

    verification_percentage: float = 0.0
    """How much of a fragment is read when it is checked, beside its first and last entry on each bookie. 100 finds
    every damaged entry, and reads everything."""

    mark_misplaced: bool = False
    """Whether the placement check marks what it finds, and workers move such copies to where the policy wants them:
    Apache's `repairedPlacementPolicyNotAdheringBookieEnable`. It takes a map of racks."""

    open_ledger_grace_s: float = 30.0
    """How long the writer of an open ledger has to replace a missing bookie by itself, before it is shut out."""

    failed_ledger_backoff_s: float = 300.0
    """Longest time that a ledger is left alone after it could not be repaired. The first one is 1/32 of it."""

    failure_pause_s: float = 5.0
    """Before work goes on after something else failed, such as the metadata store."""

    bytes_per_s: float = 16 << 20
    """Payload that one worker copies: so much, and no more, competes with those who write and read. 0: no limit."""

    ledgers_at_once: int = 100
    """How many ledgers are looked at at the same time by a check."""

    replicas_timeout_s: float = 120.0
    """Longest time for one bookie to list what it has of one ledger."""

    deferred_max: int = 1000
    """Ledgers that one worker may keep locked while it waits with them."""

    idle_s: float = 30.0
    """How often a worker with nothing to do looks again, even if nobody tells it of anything new."""

    def __post_init__(self) -> None:
        intervals = (
            self.bookie_check_interval_s,
            self.ledger_check_interval_s,
            self.placement_check_interval_s,
            self.replicas_check_interval_s,
            self.open_ledger_grace_s,
            self.failed_ledger_backoff_s,
            self.bytes_per_s,
        )
        if not all(0 <= each < math.inf for each in intervals) or not 0 <= self.verification_percentage <= 100:
            raise InvalidArgument("an interval or a rate is 0 or more, and a percentage is between 0 and 100")
        if min(self.ledgers_at_once, self.deferred_max) < 1 or min(self.idle_s, self.failure_pause_s) <= 0:
            raise InvalidArgument("at least one ledger is looked at, and pauses are longer than nothing")
