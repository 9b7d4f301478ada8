"""What an append is told when its batches come to different ends, when there is no room, and when nobody waits."""

import asyncio
from dataclasses import replace

import pytest
from tests.unit.proxy.client.scripted_proxies import CLIENT, SETTINGS, Proxies, with_proxies

from quire.errors import AppendOutcomeUnknown, OverCapacity, QuireError, RecordTooLarge
from quire.proxy.client.settings import ProxyClientSettings

FEW = replace(CLIENT, batch_records_max=1)  # The same.
SMALL = replace(CLIENT, batch_bytes_max=100, batch_bytes=50)  # Each record is a batch.
RECORDS = [b"%d" % number * 60 for number in range(3)]


@pytest.mark.parametrize(("how", "options"), [("append_many", SMALL), ("append_many", FEW), ("append_set", FEW)])
def test_an_append_of_which_a_part_is_stored_is_not_told_that_nothing_was(
    how: str, options: ProxyClientSettings
) -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        settings = replace(SETTINGS, in_flight_entries=1)
        async with (
            world.client(client_settings=options, settings=settings) as client,
            client.open_writer("s") as writer,
        ):
            proxy.script.extend([None, *[OverCapacity("full", retry_after_ms=100)] * 1000])
            with pytest.raises(AppendOutcomeUnknown, match="some records were sent to stream 's', and others were not"):
                await getattr(writer, how)(RECORDS)
            proxy.script.clear()
        assert len(world.stream("s").payloads) == 1

    with_proxies(check)


def test_nothing_of_an_append_is_stored_after_it_was_refused() -> None:
    """Method: the first of three batches is refused for good, and the others wait or were refused with it."""

    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        async with world.client(client_settings=SMALL) as client, client.open_writer("s") as writer:
            proxy.script.extend([RecordTooLarge("too large here")])
            with pytest.raises(RecordTooLarge):
                await writer.append_many(RECORDS)
            await writer.append(b"next")
        assert world.stream("s").payloads == [b"next"]

    with_proxies(check)


def test_who_waits_for_room_does_not_wait_longer_than_for_an_answer() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        settings = replace(SETTINGS, window_records_max=1)
        async with world.client(settings=settings) as client, client.open_writer("s") as writer:
            proxy.hold = asyncio.Event()
            begun_s = asyncio.get_running_loop().time()
            results = await asyncio.gather(*(writer.append(b"%d" % n) for n in range(3)), return_exceptions=True)
            assert asyncio.get_running_loop().time() - begun_s < CLIENT.append_timeout_s + 0.1
            kinds = sorted(type(each).__name__ for each in results)
            assert kinds == ["AppendOutcomeUnknown", "StreamUnavailable", "StreamUnavailable"], "one had room"
            proxy.hold.set()

    with_proxies(check)


def test_what_nobody_waits_for_is_not_sent_again() -> None:
    """Method: an append is late while its batch is under way; its writer closes, and then the connection breaks."""

    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        async with world.client() as client:
            async with client.open_writer("s") as writer:
                proxy.hold = asyncio.Event()
                with pytest.raises(QuireError):
                    await writer.append(b"late")
            sent = len(proxy.batches)
            world.sim.network.reset_all("p1")
            proxy.hold = None
            await world.pass_time(200)
            assert len(proxy.batches) == sent

    with_proxies(check)


def test_a_writer_is_not_refused_for_the_failures_of_the_one_before() -> None:
    """Method: both use one call, which knows of the first one's failed attempts."""

    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        async with world.client() as client:
            async with client.open_writer("s") as writer:
                proxy.script.extend([OverCapacity("full", retry_after_ms=1)] * 20)
                await writer.append(b"first")
            sent = len(proxy.batches)
            async with client.open_writer("s") as writer:
                await writer.append(b"second")
            attempts = [batch.attempt for batch in proxy.batches]
            assert min(attempts[sent:]) > max(attempts[:sent])

    with_proxies(check)
