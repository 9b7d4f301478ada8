"""Run seeds of one workload again: python -m tests.simulation.streams WORKLOAD SEED [END_SEED] [--flaw NAME]"""

import argparse
import traceback
from contextlib import nullcontext

from tests.simulation.streams.flaws import FLAWS
from tests.simulation.streams.run import run
from tests.simulation.streams.workloads import WORKLOADS


def main() -> int:
    flaws = {flaw.name: flaw for flaw in FLAWS}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=sorted(WORKLOADS))
    parser.add_argument("seed", type=int)
    parser.add_argument("end_seed", type=int, nargs="?")
    parser.add_argument("--flaw", choices=sorted(flaws), help="plant this bug")
    arguments = parser.parse_args()
    failed = []
    for seed in range(arguments.seed, arguments.end_seed or arguments.seed + 1):
        try:
            with flaws[arguments.flaw].plant() if arguments.flaw else nullcontext():
                world = run(seed, WORKLOADS[arguments.workload])
            print(f"seed {seed}: {dict(world.events)}")
        except Exception:
            traceback.print_exc()
            failed.append(seed)
    print(f"failed: {failed}" if failed else "all is well")
    return len(failed) > 0


if __name__ == "__main__":
    raise SystemExit(main())
