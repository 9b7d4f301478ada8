"""Run seeds of one workload again: python -m tests.simulation.replication WORKLOAD SEED [END_SEED] [--flaw NAME]"""

import argparse
import time
import traceback
from contextlib import nullcontext

from tests.simulation.replication.flaws import FLAWS
from tests.simulation.replication.operator_flaws import OPERATOR_FLAWS
from tests.simulation.replication.run import run
from tests.simulation.replication.workloads import WORKLOADS


def main() -> int:
    flaws = {flaw.name: flaw for flaw in (*FLAWS, *OPERATOR_FLAWS)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("seed", type=int)
    parser.add_argument("end_seed", type=int, nargs="?")
    parser.add_argument("--flaw", choices=sorted(flaws), help="plant this bug")
    arguments = parser.parse_args()
    end = arguments.seed + 1 if arguments.end_seed is None else arguments.end_seed
    failed = 0
    for seed in range(arguments.seed, end):
        began_s = time.process_time()
        try:
            with flaws[arguments.flaw].plant() if arguments.flaw else nullcontext():
                world = run(seed, WORKLOADS[arguments.workload])
            print(f"{seed}: {time.process_time() - began_s:.2f} s of CPU, {dict(world.events)}")
        except Exception:
            failed += 1
            print(f"{seed}: fails")
            traceback.print_exc()
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
