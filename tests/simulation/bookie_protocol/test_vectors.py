"""A running bookie, asked in the bytes of Apache's own classes, answers in the bytes of Apache's own classes."""

import pytest

from quire.codec.wire import v3
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import (
    BookieInfoResponse,
    ForceLedgerResponse,
    ListEntriesResponse,
    Operation,
    ReadLacResponse,
    WriteLacResponse,
)
from tests.support import wire_vectors as vectors
from tests.support.raw_bookie_client import V2, World, bookie_settings, decoded, with_bookie

OK = Status.EOK


async def exchange(world: World, *pairs: tuple[bytes, bytes]) -> None:
    for request, answer in pairs:
        assert (await world.client.ask(request)).hex(" ") == answer.hex(" ")


def test_adds_reads_and_batch_reads_of_version_2() -> None:
    async def check(world: World) -> None:
        await exchange(
            world,
            (vectors.V2_BATCH, vectors.V2_BATCH_NO_LEDGER),
            (vectors.V2_ADD, vectors.V2_ADD_OK),
            (vectors.V2_READ, vectors.V2_READ_OK),
            (vectors.V2_BATCH, vectors.V2_BATCH_OK),
            (vectors.V2_AUTH, vectors.V2_AUTH),
        )

    with_bookie(check)


def test_a_fence_of_version_2() -> None:
    async def check(world: World) -> None:
        await exchange(
            world,
            (vectors.V2_FENCE, vectors.V2_READ_NO_ENTRY[:-8] + b"\xff" * 8),
            (vectors.V2_READ, vectors.V2_READ_NO_ENTRY),
            (vectors.V2_ADD, vectors.V2_ADD_FENCED),
            (vectors.V2_ADD.replace(bytes.fromhex("02010000"), vectors.V2_RECOVERY_ADD_STARTS, 1), vectors.V2_ADD_OK),
            (vectors.V2_READ, vectors.V2_READ_OK),
        )

    with_bookie(check)


def test_adds_and_auth_of_version_3() -> None:
    async def check(world: World) -> None:
        await exchange(
            world,
            (vectors.V3_AUTH, vectors.V3_AUTH_OK),
            (vectors.V3_ADD, vectors.V3_ADD_OK),
            (vectors.V2_READ, vectors.V2_READ_OK),  # Both versions see the same entry.
        )
        refused = await world.client.ask(vectors.V3_RECOVERY_ADD_OF_X)  # One byte is no entry.
        assert refused == vectors.V3_ADD_OK.replace(
            bytes.fromhex("1000 aa0606 0800"), bytes.fromhex("109403 aa0607 089403")
        ).replace(b"\x00\x00\x00\x13", b"\x00\x00\x00\x15", 1)

    with_bookie(check)


def test_a_long_poll_that_runs_out_of_time_and_one_that_finds_the_entry() -> None:
    """The ledger's first entry says LAC -1; an explicit LAC of 0 then confirms it."""

    async def check(world: World) -> None:
        await exchange(world, (vectors.V2_ADD, vectors.V2_ADD_OK))
        began = world.sim.loop.time()
        await exchange(world, (vectors.V3_LONG_POLL, vectors.V3_LONG_POLL_EMPTY))
        assert 2.0 <= world.sim.loop.time() - began < 2.1
        lac_0 = vectors.V3_WRITE_LAC.replace(
            bytes.fromhex("0000000000000007 62842849"), bytes.fromhex("0000000000000000 00000000")
        )
        assert decoded(await world.client.ask(lac_0)).status is OK
        await exchange(world, (vectors.V3_LONG_POLL, vectors.V3_LONG_POLL_ENTRY))

    with_bookie(check)


def test_a_fence_of_version_3() -> None:
    async def check(world: World) -> None:
        await exchange(world, (vectors.V3_FENCE, vectors.V3_FENCE_NO_ENTRY), (vectors.V2_ADD, vectors.V2_ADD_FENCED))

    with_bookie(check)


def test_the_other_requests_of_version_3() -> None:
    async def check(world: World) -> None:
        client = world.client
        await client.ask(vectors.V2_ADD)
        answer = await client.ask(vectors.V3_WRITE_LAC)
        assert answer == v3.encode_response(4, OK, WriteLacResponse(vectors.LEDGER))
        answer = await client.ask(vectors.V3_READ_LAC)
        assert answer == v3.encode_response(
            5, OK, ReadLacResponse(vectors.LEDGER, vectors.LAC_7_CRC32C, vectors.ENTRY_CRC32C)
        )
        answer = await client.ask(vectors.V3_FORCE_LEDGER)
        assert answer == v3.encode_response(7, OK, ForceLedgerResponse(vectors.LEDGER))
        content = decoded(await client.ask(vectors.V3_BOOKIE_INFO)).content
        assert isinstance(content, BookieInfoResponse)
        assert content.total_disk_bytes == world.bookie.host.disk.faults.capacity_bytes
        assert content.free_disk_bytes == world.bookie.host.disk.free_bytes()
        assert await client.ask(vectors.V3_START_TLS) == v3.encode_refusal(1, Operation.START_TLS, Status.EBADREQ)

    with_bookie(check)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_the_list_of_entries(checkpointed: bool) -> None:
    """From the write cache or from the index, it is what Apache's class writes for the same entries."""

    async def check(world: World) -> None:
        for number in (0, 1, 2, 5):
            await world.client.add(V2, vectors.LEDGER, number)
        if checkpointed:
            await world.storage.checkpoint()
        answer = await world.client.ask(vectors.V3_LIST_ENTRIES)
        assert answer == v3.encode_response(9, OK, ListEntriesResponse(vectors.LEDGER, vectors.AVAILABILITY))

    with_bookie(check, settings=bookie_settings(checkpoint_interval_s=1000))


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 64])
def test_how_the_bytes_arrive_does_not_matter(piece: int) -> None:
    """Both versions, one frame after the other without waiting, in pieces of any size."""

    async def check(world: World) -> None:
        stream = vectors.V2_ADD + vectors.V3_AUTH + vectors.V3_ADD + vectors.V2_AUTH
        for at in range(0, len(stream), piece):
            world.client.send(stream[at : at + piece])
            await world.pass_time(0.1)  # Far more than a piece travels, so that each arrives alone.
        answers = [await world.client.frame() for _ in range(4)]
        assert sorted(answers) == sorted([vectors.V2_ADD_OK, vectors.V3_AUTH_OK, vectors.V3_ADD_OK, vectors.V2_AUTH])

    with_bookie(check)
