"""`quire stream list --long` while bookies are away."""

from contextlib import AsyncExitStack

from tests.support.streams.namespace_world import World, in_namespace

from quire.cli.stream import _infos
from quire.cli.stream_output import uncounted


def test_bookies_that_do_not_answer_are_waited_for_once_and_not_for_each_stream() -> None:
    names = [f"s{number}" for number in range(40)]

    async def check(world: World) -> None:
        other = await world.open("other")
        async with AsyncExitStack() as stack:
            for name in names:
                writer = await stack.enter_async_context(world.namespace.open_writer(name))
                await writer.append_many([b"1", b"2"])
            await world.pass_time(1.0)
            assert [info.record_count for info in await _infos(other, names, quiet=True)] == [2] * len(names)
            for number in range(3):
                world.sim.network.partition("other", f"b{number}")
            began_s = world.now_s
            found = await _infos(other, names, quiet=True)
            assert [(info.stream, info.record_count, uncounted(info)) for info in found] == [
                (name, 0, [1]) for name in names
            ]
            assert world.now_s - began_s < 5
            world.sim.network.heal()

    in_namespace(check, bookies=3, seeds=1)
