"""What a simulation of ledgers is made of: how many of each, how fast, and which faults how often.

`EVERYTHING` mixes all that there is. The others aim at one situation each, so that a bug that lives there is met within
few seeds. All of them are run for the correct code; planted bugs name the workload that should find them.
"""

from dataclasses import replace

from tests.support.simulation.ledgers import Plan

EVERYTHING = Plan(
    {
        "crash": 5,
        "blackout": 0.7,
        "reset": 3,
        "partition": 3,
        "heal": 3,
        "stall": 2,
        "expire": 1,
        "lose_answers": 2,
        "slow_sync": 1,
        "fast_sync": 1,
        "failing_sync": 0.7,
        "fill": 1,
        "make_room": 1,
        "wipe": 0.3,
        "damage": 0.5,
        "collect": 2,
        "crash_client": 1,
    }
)

FENCING = Plan(
    {"partition": 2, "heal": 3, "crash_client": 0.3, "reset": 0.5},
    lasts_s=1.5,
    fault_pause_s=0.1,
    appenders=3,
    append_pause_s=0.02,
    ledgers=1,
    recoverers=2,
    recover_within_s=1.0,
    rivals=0,
    tailers=0,
    copiers=0,
    slow_chance=0.6,
    slow_s=(0.02, 0.1, 0.5),
)
"""Recoveries of ledgers whose entries are on their way: some bookies have them, some will get them later."""

CHANGES = Plan(
    {"crash": 2, "reset": 3, "partition": 1, "heal": 1, "stall": 2, "lose_answers": 1},
    lasts_s=2.5,
    fault_pause_s=0.25,
    appenders=3,
    append_pause_s=0.02,
    ledgers=1,
    recoverers=1,
    recover_within_s=3.0,
    rivals=0,
    tailers=0,
    copiers=0,
    slow_chance=0.5,
    slow_s=(0.02, 0.1, 0.5),
)
"""Bookies fail all the time, while their neighbours are slow and the metadata too."""

LATE_WRITES = replace(
    CHANGES, faults={"delay_writes": 4, "crash": 2, "fill": 1, "make_room": 1, "reset": 2, "stall": 1}
)
"""The same, and metadata writes happen long after it was asked whether they had."""

POWER = Plan(
    {"blackout": 2, "crash": 1, "reset": 0.3},
    bookies=4,
    lasts_s=2.5,
    fault_pause_s=0.4,
    appenders=3,
    append_pause_s=0.05,
    idle_chance=0.1,
    ledgers=2,
    recoverers=1,
    recover_within_s=1.5,
    rivals=0,
    tailers=0,
    copiers=0,
    slow_chance=0.3,
    slow_s=(0.02, 0.1),
    sync_s=(0.01, 0.1),
).having((3, 3, 2), (3, 2, 2), (3, 3, 3), (4, 3, 2))
"""The lights go out, on slow disks: whatever was answered too early is gone."""

DAMAGE = Plan(
    {"damage": 3, "wipe": 1, "crash_client": 1, "crash": 1},
    lasts_s=4.0,
    fault_pause_s=0.8,
    appenders=1,
    append_pause_s=0.3,
    idle_chance=0.4,
    ledgers=1,
    recoverers=2,
    recover_within_s=4.0,
    rivals=0,
    tailers=0,
    copiers=0,
    slow_chance=0.2,
).having((3, 3, 3), (3, 2, 2), (3, 3, 2), (4, 2, 2))
"""One disk goes bad while writers do little, so that the last entries are in the logs."""

HANDOVERS = Plan(
    {"crash": 3, "reset": 1, "crash_client": 2, "partition": 1, "heal": 1},
    lasts_s=2.5,
    fault_pause_s=0.2,
    appenders=3,
    append_pause_s=0.02,
    ledgers=1,
    recoverers=4,
    recover_within_s=2.0,
    rivals=1,
    tailers=0,
    copiers=0,
    slow_chance=0.5,
    slow_s=(0.02, 0.1, 0.3),
)
"""Recoveries that fail half way, one after the other, while bookies go too."""

TAILING = Plan(
    {"reset": 1, "crash": 0.5, "crash_client": 0.3},
    lasts_s=2.0,
    fault_pause_s=0.5,
    appenders=3,
    append_pause_s=0.02,
    ledgers=1,
    recoverers=2,
    recover_within_s=2.0,
    rivals=0,
    tailers=4,
    copiers=0,
    slow_chance=0.5,
    slow_s=(0.02, 0.1, 0.3),
)
"""Many readers follow a ledger that is recovered from under its writer."""
