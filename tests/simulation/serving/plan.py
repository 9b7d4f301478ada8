"""What a simulation of the serving tier is made of: how many of each, how fast, and what goes wrong.

Each plan aims at one row of the failure table, or a few that go together, and is small: a run costs less than half a
second. Most of that is appends, of some milliseconds each; time that passes without them costs next to nothing.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from quire.protocol.balancing import BalanceSettings
from quire.protocol.rate_limits import RateLimits
from tests.support.simulation.world import Setting

Fault = Literal[
    "kill_owner",  # The owner of a stream dies, and is started again after a while.
    "kill_all",  # All write proxies do.
    "expire_owner",  # The owner's session is over. It does not know yet.
    "stall_owner",  # The owner cannot reach the metadata for a while, often longer than its session lasts.
    "stall_all",  # No proxy can.
    "delay_owner",  # What the owner writes to the metadata happens late or never, and it is told that nobody knows.
    "drain_owner",  # The owner is drained, and started again.
    "move",  # The owner is asked to give the stream up.
    "cut_client",  # A client cannot reach the owner, others can.
    "cut_bookies",  # The owner cannot reach some or all of the bookies.
    "reset_owner",  # All connections of the owner break.
    "kill_reader",  # A read proxy dies, and is started again after a while.
    "cut_reader",  # A reader cannot reach a read proxy, which others can.
    "slow_bookie",  # One bookie is far away.
    "crash_bookies",  # One bookie loses power, or as many that no ack quorum is left.
    "rival",  # Somebody without a lock takes the stream over, and writes it.
    "truncate",  # What all readers have read is hidden.
    "refuse_new",  # The owner takes no further streams for a while.
    "crowd",  # All streams are given to one proxy.
    "kill_balancer",  # In the middle of a move.
    "kill_source",  # The proxy that gives a stream up because of load dies meanwhile.
    "kill_target",  # The one that is to have it does.
    "late_balancer",  # The balancer's session is over, it does not know, and its orders arrive late.
]


@dataclass(frozen=True, slots=True)
class Plan(Setting):
    """One kind of run. As many faults as that come, one after the other."""

    faults: dict[Fault, float] = field(default_factory=dict)
    faults_max: int = 2
    fault_pause_s: float = 0.6

    proxies: int = 2
    read_proxies: int = 1
    streams: int = 1

    writers: int = 3
    """Of each kind of client in turn: with producer ids, without, and without but sending again."""
    bursts: int = 6
    """Each writer appends so many times, a few calls at once and without waiting for the ones before."""
    burst_pause_s: float = 0.4
    append_timeout_s: float = 15.0
    readers: int = 2
    reopen_chance: float = 0.3
    """That a reader is closed and goes on from its position, now and then."""

    roll_bytes: tuple[int, ...] = (300, 1 << 30)
    """Segments roll at one of these sizes."""
    stream_limits: RateLimits = field(default_factory=RateLimits)
    proxy_limits: RateLimits = field(default_factory=RateLimits)
    streams_owned_max: int = 10_000
    balance: BalanceSettings = field(default=BalanceSettings(is_on=False))
    loss: tuple[float, ...] = (0.0,)
    """How likely it is that a connection breaks, at each piece of data."""

    is_calm: bool = False
    """Nothing happens that ends a segment early: what readers are given can be compared with what is confirmed."""
    never_fails: bool = False
    """With producer ids all appends succeed, whatever happens."""


CRASH = Plan({"kill_owner": 1}, proxies=3, never_fails=True)
COLD_START = Plan({"kill_all": 1}, faults_max=1, streams=2, never_fails=True)
EXPIRY = Plan({"expire_owner": 2, "stall_owner": 2}, faults_max=3, fault_pause_s=1.0, never_fails=True)
LATE_WRITES = Plan(
    {"delay_owner": 4, "move": 2, "reset_owner": 1, "kill_owner": 1},
    faults_max=6,
    fault_pause_s=0.3,
    roll_bytes=(200, 400),
    never_fails=True,
)
METADATA_DOWN = Plan({"stall_all": 1}, faults_max=1, fault_pause_s=1.0)
DRAIN = Plan({"drain_owner": 1}, fault_pause_s=0.4, never_fails=True)
MOVE = Plan({"move": 3, "reset_owner": 1}, faults_max=4, fault_pause_s=0.4, burst_pause_s=0.2, never_fails=True)
CUT_OFF = Plan({"cut_client": 2, "reset_owner": 2}, faults_max=5, fault_pause_s=0.3, never_fails=True)
STORAGE = Plan({"cut_bookies": 2, "crash_bookies": 1}, fault_pause_s=1.0)
SLOW = Plan({"slow_bookie": 1}, is_calm=True, never_fails=True)
READERS = Plan(
    {"kill_reader": 2, "cut_reader": 1},
    read_proxies=2,
    faults_max=3,
    readers=3,
    writers=2,
    is_calm=True,
    never_fails=True,
    roll_bytes=(200, 400),
)
RIVALS = Plan({"rival": 2, "expire_owner": 1, "move": 1}, faults_max=3, never_fails=True)
TRUNCATION = Plan({"truncate": 3, "move": 1}, faults_max=4, roll_bytes=(200, 400), never_fails=True)
LIMITS = Plan(
    {"move": 1},
    faults_max=1,
    stream_limits=RateLimits(bytes_hard=80.0),  # Of large and small batches the small ones fit more often.
    append_timeout_s=20.0,
    bursts=4,
    never_fails=True,
)
OVER_CAPACITY = Plan(
    {"kill_owner": 1, "move": 2, "refuse_new": 1},
    faults_max=3,
    fault_pause_s=0.4,
    proxies=3,
    streams=4,
    writers=4,
    readers=4,
    bursts=4,
    streams_owned_max=2,  # When one proxy is down the others have just room for all streams.
    proxy_limits=RateLimits(bytes_hard=150.0),
    append_timeout_s=20.0,
    never_fails=True,
)
BALANCE = Plan(
    {"crowd": 2, "kill_balancer": 2, "kill_source": 1, "kill_target": 2, "late_balancer": 3},
    faults_max=4,
    fault_pause_s=0.6,
    proxies=3,
    streams=5,
    writers=5,
    readers=5,
    bursts=10,
    balance=BalanceSettings(interval_s=0.3, threshold=0.0, water_mark=0.0, rest_s=0.4, moves_max=4, moves_at_once=2),
    never_fails=True,
)
LOSSY = Plan({"reset_owner": 1}, loss=(0.002, 0.005), bursts=5)
DEADLINES = Plan({"cut_bookies": 1, "stall_owner": 1, "kill_owner": 1}, append_timeout_s=0.8)
EVERYTHING = Plan(
    {
        "kill_owner": 2,
        "expire_owner": 1,
        "stall_owner": 1,
        "drain_owner": 1,
        "move": 1,
        "cut_client": 1,
        "cut_bookies": 1,
        "reset_owner": 1,
        "kill_reader": 2,
        "cut_reader": 1,
        "crash_bookies": 1,
        "rival": 1,
        "truncate": 1,
    },
    faults_max=4,
    proxies=3,
    read_proxies=2,
    streams=2,
    bursts=5,
)

# Two for planted bugs.

# Every stream is asked for at once, of proxies that have just room for all of them.
RUSH = replace(OVER_CAPACITY, faults={"kill_all": 1}, streams=6, writers=12, readers=1)

# Orders are late again and again, and so many that a later balancer has other streams moved first.
_MANY_ORDERS = replace(BALANCE.balance, moves_at_once=4, moves_max=8)
LATE_ORDERS = replace(
    BALANCE,
    faults={"late_balancer": 1},
    faults_max=10,
    bursts=20,
    streams=10,
    writers=10,
    readers=2,
    balance=_MANY_ORDERS,
)
