"""Run seeds of one workload again: python -m tests.simulation.serving WORKLOAD SEED [END_SEED] [--flaw NAME]"""

import argparse
import time
import traceback
from contextlib import nullcontext

from tests.simulation.serving.flaws import FLAWS
from tests.simulation.serving.run import run
from tests.simulation.serving.workloads import WORKLOADS


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
        begun_s = time.process_time()
        try:
            with flaws[arguments.flaw].plant() if arguments.flaw else nullcontext():
                events = run(seed, WORKLOADS[arguments.workload])
            print(f"seed {seed}: {time.process_time() - begun_s:.2f} s of CPU: {dict(events)}")
        except Exception:
            traceback.print_exc()
            failed.append(seed)
    print(f"failed: {failed}" if failed else "all is well")
    return len(failed) > 0


if __name__ == "__main__":
    raise SystemExit(main())
