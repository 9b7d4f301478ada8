"""The workloads of the serving tier. Numbers are rows of the failure table that are about time or order."""

from tests.simulation.harness import planned, workloads
from tests.simulation.serving import plan
from tests.simulation.serving.run import live

WORKLOADS = workloads(
    "serving",
    planned(
        live,
        crash=plan.CRASH,  # 1
        expiry=plan.EXPIRY,  # 2
        late_writes=plan.LATE_WRITES,  # 2, on etcd.
        rivals=plan.RIVALS,  # 3
        deadlines=plan.DEADLINES,  # 4
        slow=plan.SLOW,  # 5
        storage=plan.STORAGE,  # 6 and 11
        metadata_down=plan.METADATA_DOWN,  # 7
        drain=plan.DRAIN,  # 8
        cold_start=plan.COLD_START,  # 9
        cut_off=plan.CUT_OFF,  # 10
        limits=plan.LIMITS,  # 12
        over_capacity=plan.OVER_CAPACITY,  # 13
        balance=plan.BALANCE,  # 13, when streams are moved because of load.
        move=plan.MOVE,  # 16 and 17
        readers=plan.READERS,  # 19
        truncation=plan.TRUNCATION,  # 20, and rolls under load.
        lossy=plan.LOSSY,
        everything=plan.EVERYTHING,
        rush=plan.RUSH,
        late_orders=plan.LATE_ORDERS,
    ),
    {"everything": 3, "slow": 0.5, "limits": 0.5, "over_capacity": 0.5, "metadata_down": 0.5}
    | {"rush": 0, "late_orders": 0},  # Those are for planted bugs alone.
    seeds=240,
    seeds_long=5_000,
    time_limit_s=300.0,
    step_limit=400_000,
)
