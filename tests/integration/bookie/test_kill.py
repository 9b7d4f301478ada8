"""A bookie's process is killed under load, again and again: everything it acknowledged is there, every fence holds."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from quire.codec.digest import Crc32cDigest, master_key
from quire.codec.entry import EntryCodec
from quire.codec.wire import v2
from quire.codec.wire.codes import Status
from quire.errors import NoSuchEntry, QuireError
from quire.metadata import open_cluster
from quire.rpc import AddAnswers, BookieChannel
from quire.runtime import Runtime, real_runtime
from quire.types import NO_ENTRY, BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, Quorum
from tests.support.servers.ports import free_port
from tests.support.servers.sqlite_bookie import BOOKIE, BookieProcess, new_cluster
from tests.support.waiting import at_a_random_moment

ROUNDS = int(os.environ.get("QUIRE_KILL_ROUNDS", "50"))
LEDGERS = 8
WINDOW = 100
KEY = master_key(b"")


class Load:
    """Writes to some ledgers as fast as the bookie goes, and remembers what was acknowledged."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.sent: dict[LedgerId, dict[EntryId, bytes]] = {}
        self.acknowledged: dict[LedgerId, list[EntryId]] = {}
        self.fenced: set[LedgerId] = set()
        self.answered = asyncio.Event()

    async def write(self, channel: BookieChannel, ledgers: list[LedgerId], *, version: int) -> None:
        """Until the connection is lost."""
        codecs = {ledger_id: EntryCodec(ledger_id, Crc32cDigest()) for ledger_id in ledgers}
        sinks = {ledger_id: _Sink(self.acknowledged.setdefault(ledger_id, []), self.answered) for ledger_id in ledgers}
        while not channel.closed:
            ledger_id = self._rng.choice(ledgers)
            sent = self.sent.setdefault(ledger_id, {})
            entry_id, payload = EntryId(len(sent)), self._rng.randbytes(self._rng.randrange(3000))
            prefix = codecs[ledger_id].prefix(entry_id, payload, lac=NO_ENTRY, length=0)
            sent[entry_id] = prefix + payload
            try:
                if version == 2:
                    head = v2.add_request_prefix(KEY, entry_bytes=len(prefix) + len(payload))
                    channel.send_adds(ledger_id, (head, prefix, payload), (entry_id,), sinks[ledger_id])
                else:
                    channel.send_add_v3(ledger_id, entry_id, KEY, (prefix, payload), sinks[ledger_id])
            except QuireError:
                return
            while len(sent) - len(self.acknowledged[ledger_id]) > WINDOW and not channel.closed:
                self.answered.clear()
                await self.answered.wait()

    async def fence(self, channel: BookieChannel, ledger_id: LedgerId) -> None:
        try:
            await channel.read(ledger_id, NO_ENTRY, version=3, master_key=KEY)
        except NoSuchEntry:
            pass
        except QuireError:
            return  # Killed before it answered.
        self.fenced.add(ledger_id)

    async def check(self, channel: BookieChannel, *, every: int = 1) -> int:
        """Read back all that was acknowledged, or every n-th, and try what is forbidden. Returns how many that were."""
        count = 0
        for ledger_id, acknowledged in self.acknowledged.items():
            entry_ids = acknowledged[::every]
            for start in range(0, len(entry_ids), 200):
                chunk = entry_ids[start : start + 200]
                found = await asyncio.gather(*(channel.read(ledger_id, entry_id, version=3) for entry_id in chunk))
                for entry_id, answer in zip(chunk, found, strict=True):
                    assert answer.body == self.sent[ledger_id][entry_id], f"entry {ledger_id}:{entry_id} has changed"
                count += len(chunk)
        for ledger_id in self.fenced:
            sink = _Sink([], self.answered)
            prefix = EntryCodec(ledger_id, Crc32cDigest()).prefix(EntryId(10**9), lac=NO_ENTRY, length=0)
            channel.send_add_v3(ledger_id, EntryId(10**9), KEY, (prefix,), sink)
            assert await sink.first is Status.EFENCED, f"the fence of ledger {ledger_id} is forgotten"
        return count


class _Sink:
    def __init__(self, acknowledged: list[EntryId], answered: asyncio.Event) -> None:
        self._acknowledged, self._answered = acknowledged, answered
        self.first: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

    def on_add_answers(self, answers: AddAnswers) -> None:
        for status, entry_ids in answers:
            if status is Status.EOK:
                self._acknowledged += entry_ids
            if not self.first.done():
                self.first.set_result(status)
        self._answered.set()

    def on_add_lost(self, entry_ids: list[EntryId], error: QuireError) -> None:
        self._answered.set()


async def make_ledgers(runtime: Runtime, uri: str, ledgers: list[LedgerId]) -> None:
    async with open_cluster(uri, runtime=runtime) as cluster:
        for ledger_id in ledgers:
            metadata = LedgerMetadata(Quorum(1, 1, 1), (Fragment(EntryId(0), (BookieId(BOOKIE),)),))
            await cluster.ledgers.create(metadata, with_id=ledger_id)


async def one_life(bookie: BookieProcess, load: Load, before: Load, ledgers: list[LedgerId], rng: random.Random) -> int:
    """Start, check what the life before acknowledged, write, and be killed. Returns how many entries were checked."""
    await bookie.start()
    async with await bookie.connect() as one, await bookie.connect() as two:
        checked = await before.check(two)
        writers = [
            asyncio.create_task(load.write(one, ledgers[: LEDGERS // 2], version=2)),
            asyncio.create_task(load.write(two, ledgers[LEDGERS // 2 : -2], version=3)),
        ]
        await at_a_random_moment(0.1, rng.random())
        fences = [asyncio.create_task(load.fence(two, ledger_id)) for ledger_id in ledgers[-2:]]
        await at_a_random_moment(0.1, rng.random())
        await bookie.kill()
        await asyncio.gather(*writers, *fences)
    return checked


@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("rounds", [6, pytest.param(ROUNDS, marks=pytest.mark.extended)])
async def test_a_killed_bookie_keeps_what_it_acknowledged(rounds: int, tmp_path: Path) -> None:
    """Each life writes to ledgers of its own and is killed at a random moment; the next one checks it, and the last
    start takes samples of all of them.
    """
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng, runtime = random.Random(seed), real_runtime()
    uri = await new_cluster(runtime, tmp_path)
    bookie = BookieProcess(
        runtime, tmp_path, uri, port=free_port(), arguments=("--admin", "none", "--journal", str(tmp_path / "j1"))
    )
    loads, checked = [Load(rng)], 0
    try:
        for number in range(rounds):
            ledgers = [LedgerId(number * LEDGERS + each) for each in range(LEDGERS)]
            await make_ledgers(runtime, uri, ledgers)
            loads.append(Load(rng))
            checked += await one_life(bookie, loads[-1], loads[-2], ledgers, rng)
        await bookie.start()
        async with await bookie.connect() as channel:
            at_last = sum([await load.check(channel, every=7) for load in loads])
        assert await bookie.stop() == 0
    finally:
        await bookie.kill()
        await runtime.disk.aclose()
    fences = sum(len(load.fenced) for load in loads)
    print(f"{checked} entries and {fences} fences checked in {rounds} rounds, {at_last} entries again at the end")
    assert 7 * at_last >= checked > 20 * rounds, "the load is too light to prove anything"
    assert fences > rounds // 2
