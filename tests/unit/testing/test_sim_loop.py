"""`SimLoop`: virtual time, and an order of steps that only the seed decides."""

import asyncio
import contextvars
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from quire.testing import SimLoop, SimRefused, run, run_on

SEEDS = range(40)


def test_hours_pass_at_once_and_to_the_second() -> None:
    async def main() -> float:
        for _ in range(10):
            await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run(main(), seed=1) == 36_000.0


def test_timeouts_fire_at_their_moment() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(90):
                await asyncio.Event().wait()
        assert loop.time() == 90
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 10)
        assert loop.time() == 100
        async with asyncio.timeout(5):
            await asyncio.sleep(4.5)
        assert loop.time() == 104.5

    for seed in SEEDS:
        run(main(), seed=seed)


def _orders(count: int, body: Callable[[int, list[int]], Coroutine[Any, Any, None]]) -> set[tuple[int, ...]]:
    """The orders in which `count` tasks ran, over many seeds."""

    async def main() -> tuple[int, ...]:
        order: list[int] = []
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(body(number, order))
        return tuple(order)

    return {run(main(), seed=seed) for seed in range(60)}


def test_every_order_of_ready_tasks_is_tried_by_some_seed() -> None:
    async def body(number: int, order: list[int]) -> None:
        order.append(number)

    assert _orders(3, body) == set(itertools.permutations(range(3)))


def test_every_order_of_timers_due_at_once_is_tried_by_some_seed() -> None:
    async def body(number: int, order: list[int]) -> None:
        asyncio.get_running_loop().call_at(5.0, order.append, number)
        await asyncio.sleep(9)

    assert _orders(3, body) == set(itertools.permutations(range(3)))


def test_timers_due_at_different_moments_keep_their_order() -> None:
    async def body(number: int, order: list[int]) -> None:
        await asyncio.sleep(3 - number)
        order.append(number)

    assert _orders(3, body) == {(2, 1, 0)}


def test_callbacks_keep_the_order_in_which_they_were_scheduled() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        order: list[int] = []
        noise = [asyncio.create_task(asyncio.sleep(0)) for _ in range(5)]
        for number in range(10):
            loop.call_soon(order.append, number)
        await asyncio.gather(*noise)
        await asyncio.sleep(1)
        return order

    assert all(run(main(), seed=seed) == list(range(10)) for seed in SEEDS)


def test_a_task_does_not_overtake_a_callback_scheduled_before_it() -> None:
    """`call_soon(f)` followed by `sleep(0)` is how much code lets a callback happen first."""

    async def main() -> None:
        for _ in range(20):
            done: list[bool] = []
            asyncio.get_running_loop().call_soon(done.append, True)
            await asyncio.sleep(0)
            assert done == [True]

    for seed in SEEDS:
        run(main(), seed=seed)


def test_a_callback_may_overtake_a_task_that_became_ready_earlier() -> None:
    async def main() -> bool:
        order: list[str] = []

        async def step() -> None:
            order.append("step")

        task = asyncio.create_task(step())
        asyncio.get_running_loop().call_soon(order.append, "callback")
        await asyncio.sleep(1)
        await task
        return order == ["callback", "step"]

    assert {run(main(), seed=seed) for seed in SEEDS} == {True, False}


def test_cancel_scheduled_as_a_callback_is_no_step_of_the_task() -> None:
    """`task.cancel` is a method of a task too; scheduled by hand it must stay in line with other callbacks."""

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        order: list[str] = []
        task = asyncio.create_task(asyncio.sleep(9))
        await asyncio.sleep(1)
        loop.call_soon(order.append, "before")
        loop.call_soon(task.cancel)
        loop.call_soon(lambda: order.append(f"after, cancelling={task.cancelling()}"))
        await asyncio.wait([task])
        return order

    assert all(run(main(), seed=seed) == ["before", "after, cancelling=1"] for seed in SEEDS)


async def _busy() -> list[int]:
    """Uses a bit of everything that could depend on hash order or on the process's history."""
    order: list[int] = []
    lock = asyncio.Lock()
    queue: asyncio.Queue[int] = asyncio.Queue(2)

    async def produce(number: int) -> None:
        async with lock:
            await asyncio.sleep(number % 3)
        await queue.put(number)

    async def consume() -> None:
        while True:
            order.append(await queue.get())

    consumers = [asyncio.create_task(consume()) for _ in range(3)]
    done, _ = await asyncio.wait({asyncio.create_task(produce(number)) for number in range(20)})
    order += [hash(task) for task in done]
    await asyncio.to_thread(order.append, -1)
    for consumer in consumers:
        consumer.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    return order


def test_one_seed_repeats_every_step_and_another_does_not() -> None:
    def trace(seed: int) -> tuple[str, int, list[int]]:
        loop = SimLoop(seed)
        order = run_on(loop, _busy())
        return loop.trace_digest(), loop.steps, order

    assert trace(5) == trace(5)
    assert len({trace(seed)[0] for seed in range(20)}) == 20


def test_the_trace_takes_notes() -> None:
    async def main(note: str) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.trace(note)

    loops = [SimLoop(1) for _ in range(3)]
    for loop, note in zip(loops, ["same", "same", "other"], strict=True):
        run_on(loop, main(note))
    first, second, third = (loop.trace_digest() for loop in loops)
    assert first == second != third


def test_asyncio_primitives_work() -> None:
    async def main() -> None:
        condition, semaphore, barrier = asyncio.Condition(), asyncio.Semaphore(2), asyncio.Barrier(3)
        inside: list[int] = []
        most: list[int] = []

        async def worker(number: int) -> int:
            async with semaphore:
                inside.append(number)
                most.append(len(inside))
                await asyncio.sleep(1)
                inside.remove(number)
            await barrier.wait()
            async with condition:
                condition.notify_all()
            return number

        async def fail_in_a_group() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(3600))
                group.create_task(asyncio.to_thread(int, "no number"))

        tasks = [asyncio.create_task(worker(number)) for number in range(3)]
        async with condition:
            await condition.wait()
        assert await asyncio.gather(*tasks) == [0, 1, 2]
        assert max(most) == 2
        firsts = [await first for first in asyncio.as_completed([worker(0), worker(1), worker(2)])]
        assert sorted(firsts) == [0, 1, 2]
        with pytest.raises(ExceptionGroup) as caught:
            await fail_in_a_group()
        assert isinstance(caught.value.exceptions[0], ValueError)
        assert asyncio.get_running_loop().time() < 3600

    for seed in SEEDS:
        run(main(), seed=seed)


def test_context_variables_follow_callbacks_tasks_and_executor_calls() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")

    async def main() -> None:
        seen: list[str] = []
        variable.set("mine")
        asyncio.get_running_loop().call_soon(lambda: seen.append(variable.get()))
        await asyncio.create_task(asyncio.sleep(0))
        seen.append(await asyncio.to_thread(variable.get))
        assert seen == ["mine", "mine"]

    run(main(), seed=3)
    assert variable.get() == "none"


def test_executor_calls_finish_in_any_order_and_raise_what_they_raise() -> None:
    async def main() -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        order: list[int] = []
        await asyncio.gather(*(loop.run_in_executor(None, order.append, number) for number in range(3)))
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 / 0)
        return tuple(order)

    assert len({run(main(), seed=seed) for seed in SEEDS}) == 6


def test_a_cancelled_executor_call_may_still_happen() -> None:
    async def main() -> int:
        calls: list[int] = []
        future = asyncio.get_running_loop().run_in_executor(None, calls.append, 1)
        future.cancel()
        await asyncio.sleep(1)
        return len(calls)

    assert {run(main(), seed=seed) for seed in SEEDS} == {0, 1}


def test_cancelled_timers_neither_fire_nor_move_the_clock() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        fired: list[int] = []
        for number in range(1000):
            loop.call_later(100 + number, fired.append, number).cancel()
        loop.call_later(5, fired.append, -1)
        await asyncio.sleep(10)
        assert fired == [-1]
        return loop.time()

    assert run(main(), seed=1) == 10


@pytest.mark.parametrize(
    ("name", "attempt"),
    [
        ("create_connection", lambda loop: asyncio.open_connection("localhost", 1)),
        ("create_server", lambda loop: asyncio.start_server(print, "localhost", 0)),
        ("getaddrinfo", lambda loop: loop.getaddrinfo("localhost", 1)),
        ("subprocess_exec", lambda loop: asyncio.create_subprocess_exec("true")),
        ("subprocess_shell", lambda loop: asyncio.create_subprocess_shell("true")),
        ("add_signal_handler", lambda loop: loop.add_signal_handler(15, print)),
        ("add_reader", lambda loop: loop.add_reader(0, print)),
        ("stop", lambda loop: loop.stop()),
        ("set_task_factory", lambda loop: loop.set_task_factory(None)),
    ],
)
def test_what_is_real_is_refused_by_name(
    name: str, attempt: Callable[[asyncio.AbstractEventLoop], Awaitable[object]]
) -> None:
    async def main() -> None:
        await attempt(asyncio.get_running_loop())

    with pytest.raises(SimRefused, match=rf"loop\.{name}\(\) is refused in a simulation"):
        run(main(), seed=1)


def test_the_whole_interface_of_a_loop_is_either_there_or_refused() -> None:
    """Nothing may end in asyncio's bare NotImplementedError, which says nothing about what to do."""
    interface = {name for name in vars(asyncio.AbstractEventLoop) if not name.startswith("_")}
    inherited = {name for name in interface if getattr(SimLoop, name) is getattr(asyncio.AbstractEventLoop, name)}
    assert inherited == set()


def test_a_closed_loop_refuses_work() -> None:
    loop = SimLoop(1)
    run_on(loop, asyncio.sleep(1))
    assert loop.is_closed()
    assert not loop.is_running()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(print)


async def test_a_simulation_does_not_start_inside_a_running_loop() -> None:
    main = asyncio.sleep(1)
    with pytest.raises(RuntimeError, match="cannot run inside"):
        run(main, seed=1)
