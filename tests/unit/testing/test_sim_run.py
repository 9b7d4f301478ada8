"""How a simulated run ends: no failure passes unseen, none hides another, and each names its seed."""

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator

import pytest

from quire.testing import SimDeadlock, SimLoop, SimStuck, SimUnhandled, run, run_on, sim_run


def test_a_deadlock_names_each_task_and_where_it_waits() -> None:
    async def wait_for_nobody() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        asyncio.get_running_loop().call_later(1000, print).cancel()
        task = asyncio.create_task(wait_for_nobody(), name="lonely reader")
        await task

    with pytest.raises(SimDeadlock) as caught:
        run(main(), seed=4242)
    message = str(caught.value)
    assert "seed 4242" in message
    assert "lonely reader: " in message
    assert "wait_for_nobody (test_sim_run.py:" in message
    assert "Event.wait (locks.py:" in message
    assert "Task-1: " in message


def test_two_tasks_that_wait_for_each_other_are_a_deadlock() -> None:
    async def hold(first: asyncio.Lock, second: asyncio.Lock) -> None:
        async with first:
            await asyncio.sleep(1)
            async with second:
                pass

    async def main() -> None:
        left, right = asyncio.Lock(), asyncio.Lock()
        await asyncio.gather(hold(left, right), hold(right, left))

    with pytest.raises(SimDeadlock, match=r"Task-2: .*hold .*\n.*Task-3: .*hold "):
        run(main(), seed=1)


def test_too_much_virtual_time_is_stuck() -> None:
    async def main() -> None:
        for _ in itertools.count():
            await asyncio.sleep(60)

    with pytest.raises(SimStuck, match=r"still not done after 3600 s of virtual time; still running:\n  Task-1"):
        run(main(), seed=1, time_limit_s=3600)


def test_too_many_steps_are_stuck() -> None:
    async def spin() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.create_task(spin(), name="spinner")

    with pytest.raises(SimStuck, match=r"(?s)after 500 steps.*spinner: .*spin .*seed 77"):
        run(main(), seed=77, step_limit=500)


def test_an_error_of_main_keeps_its_type_and_names_the_seed() -> None:
    async def main() -> None:
        await asyncio.sleep(3)
        raise KeyError("missing")

    with pytest.raises(KeyError) as caught:
        run(main(), seed=31337)
    assert any("seed 31337, at 3.000000 s" in note for note in caught.value.__notes__)


def test_a_failed_task_that_nobody_awaits_fails_the_run_at_once() -> None:
    async def fail() -> None:
        raise ValueError("unseen")

    async def main() -> None:
        asyncio.create_task(fail(), name="forgotten")  # noqa: RUF006
        await asyncio.sleep(50)
        pytest.fail("the run went on")

    with pytest.raises(SimUnhandled, match=r"(?s)forgotten.*unseen.*seed 9, at 0\.0") as caught:
        run(main(), seed=9)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_failed_task_in_a_reference_cycle_fails_the_run_at_the_end() -> None:
    async def fail(cycle: list[object]) -> None:
        cycle.append(asyncio.current_task())
        raise ValueError("unseen")

    async def main() -> None:
        cycle: list[object] = []
        cycle += [cycle, asyncio.create_task(fail(cycle))]
        await asyncio.sleep(1)

    with pytest.raises(SimUnhandled, match="unseen"):
        run(main(), seed=9)


def test_an_awaited_failure_is_the_business_of_whoever_awaits() -> None:
    async def fail() -> None:
        raise ValueError("seen")

    async def main() -> str:
        task = asyncio.create_task(fail())
        await asyncio.sleep(1)
        with pytest.raises(ValueError, match="seen"):
            await task
        return "fine"

    assert run(main(), seed=9) == "fine"


def test_an_error_in_a_callback_fails_the_run_even_if_a_handler_is_set() -> None:
    handled: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: handled.append(context["exception"]))
        loop.call_later(2, lambda: 1 / 0)
        await asyncio.sleep(5)

    with pytest.raises(SimUnhandled, match="ZeroDivisionError"):
        run(main(), seed=9)
    assert len(handled) == 1


def test_tasks_left_over_are_cancelled_and_awaited() -> None:
    ended: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(1_000_000_000)
        finally:
            await asyncio.sleep(5)
            ended.append("lingerer")

    async def main() -> str:
        asyncio.get_running_loop().create_task(linger())
        await asyncio.sleep(1)
        return "done"

    assert run(main(), seed=1) == "done"
    assert ended == ["lingerer"]


def test_a_task_that_fails_while_being_cancelled_at_the_end_fails_the_run() -> None:
    async def linger() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise RuntimeError("cannot stop")

    async def main() -> None:
        asyncio.get_running_loop().create_task(linger(), name="lingerer")
        await asyncio.sleep(1)

    with pytest.raises(SimUnhandled, match=r"lingerer failed when it was cancelled at the end.*cannot stop"):
        run(main(), seed=1)


def test_a_task_that_refuses_to_end_does_not_hide_the_first_error() -> None:
    async def linger() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        asyncio.get_running_loop().create_task(linger())
        await asyncio.sleep(1)
        raise KeyError("first")

    with pytest.raises(KeyError, match="first") as caught:
        run(main(), seed=1)
    assert any("while tidying up" in note for note in caught.value.__notes__)


def test_async_generators_left_half_way_are_closed() -> None:
    closed: list[str] = []

    async def numbers(name: str) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(1)
            closed.append(name)

    async def main() -> None:
        kept = numbers("kept")
        keep.append(kept)
        await anext(kept)
        await anext(numbers("dropped"))
        await asyncio.sleep(5)
        assert closed == ["dropped"]

    keep: list[object] = []
    run(main(), seed=1)
    assert closed == ["dropped", "kept"]


@pytest.mark.parametrize("freezes", [False, True])
def test_garbage_collection_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch, *, freezes: bool) -> None:
    monkeypatch.setattr(sim_run, "freezes_heap", freezes)
    assert gc.isenabled()
    gc.unfreeze()
    with pytest.raises(SimDeadlock):
        run(asyncio.Event().wait(), seed=1)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_the_loop_can_be_looked_at_after_the_run() -> None:
    loop = SimLoop(6)
    assert run_on(loop, asyncio.sleep(7, "result")) == "result"
    assert loop.time() == 7
    assert loop.steps > 0
