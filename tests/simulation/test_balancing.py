"""Write proxies that share what there is to do: who balances, what it moves, and when it stops.

That nothing is lost while streams move, and balancers die, is proven by the workload `serving/balance`.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import NotOwner, QuireError
from quire.protocol.balancing import BalanceSettings
from quire.proxy.write.proxy import WriteProxy
from quire.proxy.write.settings import WriteProxySettings
from quire.rpc.serving import methods
from quire.rpc.serving.methods import Method
from quire.rpc.serving.transport import Caller
from quire.testing import sim_tree
from tests.simulation.serving.world import PORT, Serving, serve

EAGER = BalanceSettings(interval_s=1.0, threshold=0.1, water_mark=0.0, rest_s=2.0)
WHEN_ASKED = replace(EAGER, interval_s=0.0, rest_s=0.0)
STREAMS = [f"s{number}" for number in range(6)]
CALLER = Caller("operator")


async def rebalanced(world: Serving, settings: BalanceSettings) -> None:
    """Three write proxies that are balanced so. The first one has all streams."""
    for number in range(3):
        await world.start_writer(f"w{number}", WriteProxySettings(balance=settings))
    async with world.client() as client:
        for stream in STREAMS:
            await client.create_stream(stream)
    for stream in STREAMS:
        await world.writers["w0"].heartbeat(pb.HeartbeatRequest(stream=stream), CALLER)


def counts(world: Serving) -> list[int]:
    return [len(proxy.table.owned) for proxy in world.writers.values()]


async def until(world: Serving, is_so: Any, *, within_s: float, what: str) -> None:
    deadline_s = world.now_s + within_s
    while not is_so():
        assert world.now_s < deadline_s, f"not within {within_s} s: {what}"
        await world.pause(0.1)


def balancers(world: Serving) -> list[WriteProxy]:
    return [proxy for proxy in world.writers.values() if proxy.balancer and proxy.balancer.term]


async def balancer_of(world: Serving) -> WriteProxy:
    await until(world, lambda: balancers(world), within_s=10, what="somebody is the balancer")
    return balancers(world)[0]


async def ask(proxy: WriteProxy, method: Method, request: Any) -> Any:
    handler: Any = proxy.handlers()[method]
    return await handler(request, CALLER)


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_streams_spread_over_all_proxies_and_then_stay_where_they_are() -> None:
    async def check(world: Serving) -> None:
        await rebalanced(world, EAGER)
        stop = asyncio.Event()

        async def write(writer: Any) -> None:
            while not stop.is_set():
                await writer.append(bytes(1000))
                await world.pause(0.1)

        async with world.client("writing") as client, AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            for stream in STREAMS:
                group.create_task(write(await stack.enter_async_context(client.open_writer(stream))))
            await until(world, lambda: counts(world) == [2, 2, 2], within_s=30, what="each has its share")
            moves = len(world.orders.all)
            await world.pause(30.0)
            assert len(world.orders.all) == moves, "the load is the same, and nothing moves"
            stop.set()
        assert counts(world) == [2, 2, 2]
        world.orders.prove(rest_s=EAGER.rest_s)

    serve(check, writers=0, readers=0)


def test_there_is_one_balancer_and_when_it_dies_another() -> None:
    async def check(world: Serving) -> None:
        await rebalanced(world, WHEN_ASKED)
        first = await balancer_of(world)
        assert len(balancers(world)) == 1
        assert first.balancer is not None
        term, name = first.balancer.term, first.address.host
        await world.kill(name)
        del world.writers[name]
        second = await balancer_of(world)
        assert second.balancer is not None
        assert second.balancer.term > term
        sim_tree(world.cluster).expire_host(second.address.host)
        await until(
            world,
            lambda: any(each.balancer and each.balancer.term > term + 1 for each in balancers(world)),
            within_s=20,
            what="a lost session is followed by an election",
        )
        await until(world, lambda: len(balancers(world)) == 1, within_s=20, what="the old one knows")

    serve(check, writers=0, readers=0)


def test_an_operator_sees_the_plan_and_has_it_carried_out_once() -> None:
    async def check(world: Serving) -> None:
        await rebalanced(world, WHEN_ASKED)
        balancer = await balancer_of(world)
        other = next(proxy for proxy in world.writers.values() if proxy is not balancer)
        with pytest.raises(NotOwner) as raised:
            await ask(other, methods.BALANCE, pb.BalanceRequest())
        told = raised.value.facts["proxy"]
        assert isinstance(told, pb.Owner)
        assert told.host == balancer.address.host
        plan = await ask(balancer, methods.BALANCE, pb.BalanceRequest())
        assert counts(world) == [6, 0, 0], "a plan moves nothing"
        assert len(plan.moves) == 4
        assert {each.proxy.host: each.streams for each in plan.proxies} == {"w0": 6, "w1": 0, "w2": 0}
        assert max(each.load_then for each in plan.proxies) < max(each.load for each in plan.proxies)
        made = await ask(balancer, methods.BALANCE, pb.BalanceRequest(moves=plan.moves))
        assert [each.problem for each in made.moves] == [""] * 4
        assert counts(world) == [2, 2, 2]
        again = await ask(balancer, methods.BALANCE, pb.BalanceRequest(moves=plan.moves))
        assert all(each.problem for each in again.moves), "those lives are over"
        assert counts(world) == [2, 2, 2]

    serve(check, writers=0, readers=0)


def test_a_stream_whose_new_owner_is_dead_is_taken_by_another_one() -> None:
    """The target dies before it hears of the stream: whoever asks next gets it all the same."""

    async def check(world: Serving) -> None:
        await rebalanced(world, WHEN_ASKED)
        balancer = await balancer_of(world)
        plan = await ask(balancer, methods.BALANCE, pb.BalanceRequest())
        move = next(each for each in plan.moves if each.target.host != balancer.address.host)
        await world.kill(move.target.host)
        (made,) = (await ask(balancer, methods.BALANCE, pb.BalanceRequest(moves=[move]))).moves
        assert made.problem
        async with world.client("writing") as client, client.open_writer(move.stream) as writer:
            assert (await writer.append(b"goes on")).entry_id >= 0

    serve(check, writers=0, readers=0)


def test_new_streams_are_not_placed_where_there_is_much_to_do() -> None:
    async def check(world: Serving) -> None:
        await rebalanced(world, WHEN_ASKED)
        balancer = await balancer_of(world)
        names = [f"new{number}" for number in range(30)]

        async def placed(by: WriteProxy) -> set[str]:
            found = [await by.routing.get_owner(name) for name in names]
            return {answer.owner.host for answer in found}

        assert await placed(world.writers["w1"]) == {"w0", "w1", "w2"}
        await ask(balancer, methods.BALANCE, pb.BalanceRequest())  # It looks, and tells the others.
        await world.pause(1.0)
        for proxy in world.writers.values():
            assert await placed(proxy) == {"w1", "w2"}
        sim_tree(world.cluster).expire_host(balancer.address.host)
        await world.pause(5.0)
        assert await placed(world.writers["w1"]) == {"w0", "w1", "w2"}, "what a former balancer saw counts no more"

    serve(check, writers=0, readers=0)


def test_an_order_of_an_earlier_balancer_is_refused() -> None:
    async def check(world: Serving) -> None:
        await rebalanced(world, WHEN_ASKED)
        proxy, target = world.writers["w0"], pb.Owner(host="w1", port=PORT)
        order = pb.ReleaseRequest(stream="s0", suggested_owner=target, term=100)
        await proxy.release(order, CALLER)
        assert proxy.table.owns("s0") is None
        for term, stream in ((99, "s1"), (1, "s2")):
            with pytest.raises(QuireError, match="not the latest"):
                await proxy.release(pb.ReleaseRequest(stream=stream, suggested_owner=target, term=term), CALLER)
            assert proxy.table.owns(stream) is not None

    serve(check, writers=0, readers=0)
