"""Others fill the disk of a bookie: it loses nothing, answers reads, and takes entries again when there is room."""

import pytest

from quire.codec.wire.codes import Status
from quire.protocol.space import SpaceMode
from quire.types import EntryId
from tests.support.raw_bookie_client import KEY, LEDGER, V2, V3, Answer, Version, World, entry, with_bookie
from tests.support.tiers import one_in

OTHER = LEDGER + 1  # It has no entries.
ENTRIES_MAX = 1_000
TRIES_MAX = 100


class Writer:
    """Adds entries to one ledger, and remembers those that were acknowledged."""

    def __init__(self, world: World, version: Version) -> None:
        self._world, self._version = world, version
        self.acknowledged: dict[int, bytes] = {}
        self._next = 0

    async def add(self) -> Status | None:
        """The bookie's answer; None if it dropped the connection, and the entry may be stored or not."""
        number, self._next = self._next, self._next + 1
        body = entry(LEDGER, number, self._world.sim.rng.bytes(2_000))
        answer = await self._ask(self._version.add(LEDGER, number, body))
        if answer is not None and answer.status is Status.EOK:
            self.acknowledged[number] = body
        return None if answer is None else answer.status

    async def fence(self, ledger_id: int) -> Status:
        return (await self._read(ledger_id, 0, fence=KEY)).status

    async def check(self) -> None:
        for number, body in self.acknowledged.items():
            assert await self._read(LEDGER, number) == Answer(Status.EOK, LEDGER, EntryId(number), body)

    async def _read(self, ledger_id: int, entry_id: int, *, fence: bytes | None = None) -> Answer:
        """Connections are dropped when a journal or a checkpoint finds no room: once each."""
        for _ in range(3):
            answer = await self._ask(self._version.read(ledger_id, entry_id, fence=fence))
            if answer is not None:
                return answer
        raise AssertionError("the bookie drops every connection")

    async def _ask(self, frame: bytes) -> Answer | None:
        client = self._world.client
        client.send(frame)
        await client.until(lambda: bool(client.frames) or client.is_lost)
        if client.frames:
            return self._version.answer(client.frames.popleft())
        self._world.client = await self._world.connect()
        return None


@pytest.mark.parametrize("version", [V2, V3], ids=["v2", "v3"])
@pytest.mark.parametrize("seed", one_in(4, range(20)))
def test_a_full_disk_ends_adds_and_nothing_else(seed: int, version: Version) -> None:
    async def check(world: World) -> None:
        writer, disk = Writer(world, version), world.bookie.host.disk
        for _ in range(world.sim.rng.randrange(1, 30)):
            assert await writer.add() is Status.EOK
        await world.pass_time(world.sim.rng.random())
        disk.fill(world.sim.rng.randrange(20_000))
        for _ in range(ENTRIES_MAX):
            if await writer.add() is Status.EREADONLY:
                break
        else:
            raise AssertionError("a full disk took everything")
        await writer.check()
        assert world.service.mode is SpaceMode.CLOSED
        assert any("room" in reason for reason in world.bookie.bookie.reasons)
        fenced = await writer.fence(OTHER)
        assert fenced in (Status.EIO, Status.ENOENTRY), "perhaps it was stored: only a checkpoint had no room"
        assert world.bookie.failure is None

        disk.faults.foreign_bytes = 0
        for _ in range(TRIES_MAX):
            await world.pass_time(1.0)
            if await writer.add() is Status.EOK:
                break
        else:
            raise AssertionError("room came back, and it takes nothing")
        await writer.check()
        assert await writer.fence(LEDGER) is Status.EOK
        await world.bookie.crash(power_loss=True)
        await world.bookie.start()
        world.client = await world.connect()
        await writer.check()
        assert (await world.client.add(version, LEDGER, ENTRIES_MAX * 2)).status is Status.EFENCED
        if fenced is Status.ENOENTRY:
            assert (await world.client.add(version, OTHER, 0)).status is Status.EFENCED

    with_bookie(check, seed=seed)
