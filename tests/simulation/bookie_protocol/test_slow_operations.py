"""What takes a bookie longer than `server.slow_s` is told, with the stage that took the time."""

import asyncio
import logging
from typing import Any

import pytest

from tests.support.raw_bookie_client import LEDGER, V3, Version, World, long_poll, with_bookie

SLOW_S = 3.0


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [each.__dict__["facts"] for each in caplog.records if each.__dict__.get("event") == event]


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "quire.bookie")


def test_an_add_that_waits_for_the_disk_names_the_journal(version: Version, caplog: pytest.LogCaptureFixture) -> None:
    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        assert told(caplog, "add.slow") == [], "it was quick"
        world.slow_syncs(SLOW_S)
        await world.client.add(version, LEDGER, 1)

    with_bookie(check)
    (fact,) = told(caplog, "add.slow")
    assert (fact["stage"], fact["adds"]) == ("journal", 1)
    assert fact["seconds"] == pytest.approx(SLOW_S, abs=0.1)
    assert "client1" in fact["peer"]


def test_an_add_that_waits_for_others_names_the_queue(version: Version, caplog: pytest.LogCaptureFixture) -> None:
    """Method: it comes while the disk is busy with the one before, and is quick itself when it is its turn."""

    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        world.slow_syncs(SLOW_S)
        first = asyncio.create_task(world.client.add(version, LEDGER, 1))
        await world.pass_time(0.5)
        world.slow_syncs(0.001)
        await world.client.add(version, LEDGER, 2)
        await first

    with_bookie(check)
    first, second = told(caplog, "add.slow")
    assert (first["stage"], second["stage"]) == ("journal", "queue")
    assert second["seconds"] == pytest.approx(SLOW_S - 0.5, abs=0.1)


def test_a_read_that_waits_for_the_disk_names_it(version: Version, caplog: pytest.LogCaptureFixture) -> None:
    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        await world.restart()
        world.bookie.host.disk.faults.latency_by_operation_s["read"] = (SLOW_S, SLOW_S)
        await world.client.read(version, LEDGER, 0)
        assert len(told(caplog, "request.slow")) == 1
        await world.client.read(version, LEDGER, 0)  # From memory.

    with_bookie(check)
    (fact,) = told(caplog, "request.slow")
    assert (fact["stage"], fact["status"]) == ("read", "EOK")
    assert fact["seconds"] >= SLOW_S


def test_a_long_poll_is_not_slow_because_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    async def check(world: World) -> None:
        await world.client.add(V3, LEDGER, 0)
        began_s = asyncio.get_running_loop().time()
        await world.client.ask_v3(long_poll(0, round(SLOW_S * 1000)))
        assert asyncio.get_running_loop().time() - began_s >= SLOW_S

    with_bookie(check)
    assert told(caplog, "request.slow") == []
