"""Sequences of events in which a record was lost once, found by a review: each is a test with real proxies."""

import asyncio

import pytest

from quire.errors import NoSuchStream
from quire.testing import sim_tree
from tests.simulation.serving.world import Serving, serve

RECORDS = 4


def test_what_waits_at_a_proxy_when_its_call_breaks_is_not_stored_out_of_order() -> None:
    """A new producer's batches wait for the stream's metadata, the client's connection breaks, and the first batch is
    refused: the others must not be stored without it, or it would be taken for stored when it comes again.

    Method: the metadata store stalls while four records of a new writer are under way, and connections are reset.
    """

    async def check(world: Serving) -> None:
        async with world.client() as client, client.open_writer("s", in_flight_entries=8) as writer:
            for name in world.writers:
                sim_tree(world.cluster).stall(name, 1.8)
            appending = []
            for number in range(RECORDS):
                appending.append(asyncio.create_task(writer.append(b"%d" % number)))
                await world.pause(0.02)
            await world.pause(0.3)
            world.sim.network.reset_all("client")
            places = await asyncio.gather(*appending)
        assert sorted(places) == places
        async with world.direct.open_reader("s") as reader:
            found = [(await anext(reader)).payload for _ in range(RECORDS)]
        assert found == [b"%d" % number for number in range(RECORDS)]

    serve(check, writers=1, readers=0, seeds=4)


def test_a_reader_does_not_go_on_in_another_stream_of_the_same_name() -> None:
    """Row 18, across a break: places of the old stream mean something else in the new one.

    Method: the read proxy dies; before it is back the stream is deleted, and created again with two segments.
    """

    async def check(world: Serving) -> None:
        async with world.direct.open_writer("s") as writer:
            await writer.append_many([b"old"] * 20)
        async with world.client() as client, client.open_reader("s") as reader:
            found: list[bytes] = []
            while len(found) < 20:
                found += [record.payload for record in await reader.read_many(50)]
            await world.kill("r0")
            await world.direct.delete_stream("s")
            for _ in range(2):
                async with world.direct.open_writer("s") as writer:
                    await writer.append_many([b"new"] * 10)
            await world.start("r0")
            with pytest.raises(NoSuchStream):
                await reader.read_many(50, timeout_s=60)

    serve(check, writers=1, readers=1, seeds=2)
