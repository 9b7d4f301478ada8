"""Calls of more records than a proxy takes at once, through real proxies: the program is that of a direct writer."""

import pytest

from tests.simulation.serving.world import Serving, serve

RECORDS = 40_000
SET_MEMBERS = 20_000


@pytest.mark.parametrize("kind", ["direct", "proxies"])
def test_the_same_program_appends_any_number_of_records_directly_and_through_proxies(kind: str) -> None:
    """Method: more than two batches of plain records, and more than one set. They are stored in order."""
    payloads = [b"%d" % number for number in range(RECORDS)]

    async def check(world: Serving) -> None:
        async with world.client() as client:
            opened = client if kind == "proxies" else world.direct
            async with opened.open_writer("s") as writer:
                dlsns = [*await writer.append_many(payloads)]
                dlsns += await writer.append_set(payloads[:SET_MEMBERS], compression="lz4")
                await writer.seal()
        async with world.direct.open_reader("s") as reader:
            records = [record async for record in reader]
        assert [record.payload for record in records] == payloads + payloads[:SET_MEMBERS]
        assert [record.dlsn for record in records] == dlsns

    serve(check, writers=1, readers=0, seeds=1)
