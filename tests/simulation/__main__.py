"""Run seeds of one workload again: python -m tests.simulation AREA/WORKLOAD SEED [END] [--flaw NAME]

END is behind the last seed. With --list: which workloads there are, how many seeds they run, and their planted bugs.
"""

import argparse
import time
import traceback

from tests.simulation.catalog import FLAWS, WORKLOADS
from tests.simulation.harness import run


def main() -> int:
    flaws = {flaw.name: flaw for flaw in FLAWS}
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("workload", nargs="?", choices=sorted(WORKLOADS), metavar="AREA/WORKLOAD")
    parser.add_argument("seed", nargs="?", type=int, metavar="SEED")
    parser.add_argument("end", nargs="?", type=int, metavar="END")
    parser.add_argument("--flaw", choices=sorted(flaws), metavar="NAME", help="plant this bug")
    parser.add_argument("--list", action="store_true", help="list workloads")
    arguments = parser.parse_args()
    if arguments.list:
        for name, workload in WORKLOADS.items():
            print(f"{name}: {len(workload.seeds)}", *(flaw.name for flaw in FLAWS if flaw.workload is workload))
        return 0
    if arguments.seed is None:
        parser.error("which workload, and which seed?")
    end = arguments.seed + 1 if arguments.end is None else arguments.end
    failed = []
    for seed in range(arguments.seed, end):
        began_s = time.process_time()
        try:
            lived = run(WORKLOADS[arguments.workload], seed, flaws.get(arguments.flaw))
            print(f"seed {seed}: {time.process_time() - began_s:.2f} s of CPU, {dict(lived.tally())}")
        except Exception:
            print(f"seed {seed}: fails after {time.process_time() - began_s:.2f} s of CPU")
            traceback.print_exc()
            failed.append(seed)
    print(f"failed: {failed}" if failed else "all is well")
    return len(failed) > 0


if __name__ == "__main__":
    raise SystemExit(main())
