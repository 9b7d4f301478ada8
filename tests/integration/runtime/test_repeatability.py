"""One seed means one run: in this process, in others, whatever they hash, and with no thread in it."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from quire.testing import Simulation, SimUnhandled, run
from tests.integration.runtime import repeated_program


def _in_process(seed: int) -> str:
    simulation = Simulation(seed)
    simulation.run(repeated_program.main)
    return f"{simulation.trace_digest()} {simulation.loop.steps}"


def _in_subprocess(seed: int, hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, repeated_program.__file__, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_seed_repeats_its_run_across_processes_and_hash_seeds(seed: int) -> None:
    here = _in_process(seed)
    assert _in_process(seed) == here
    assert [_in_subprocess(seed, hash_seed) for hash_seed in ("0", "1", "random")] == [here] * 3


def test_other_seeds_are_other_runs() -> None:
    assert len({_in_process(seed) for seed in range(20)}) == 20


def test_a_thread_that_calls_into_the_loop_fails_the_run() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        raised: list[RuntimeError] = []

        def intrude() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except RuntimeError as error:
                raised.append(error)

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        assert len(raised) == 1
        await asyncio.sleep(1)

    with pytest.raises(SimUnhandled, match="a thread called into the simulated loop"):
        run(main(), seed=1)
