"""Adds that a bookie takes in runs, as writers send them, against the same adds one by one."""

from random import Random
from typing import Any

from tests.unit.bookie.storage_samples import KEY, LEDGER, SETTINGS, StorageHost

from quire.bookie.ledger_state import LacWaiter
from quire.bookie.ledger_storage import LedgerStorage
from quire.codec.digest import Crc32cDigest
from quire.codec.entry import EntryCodec
from quire.errors import DamagedEntry, InvalidArgument
from quire.testing import Simulation, simulate
from quire.types import EntryId

CODEC = EntryCodec(LEDGER, Crc32cDigest())


def test_adds_in_a_run_do_what_they_do_one_by_one() -> None:
    """Random histories, each of them twice: with gaps, repeats, wrong keys, damage, fences, waiters and power loss."""
    taken = 0
    for seed in range(60):
        one_by_one, in_runs = History(seed, in_runs=False), History(seed, in_runs=True)
        for history in (one_by_one, in_runs):
            simulate(seed, history.run)
        assert in_runs.log == one_by_one.log, f"seed {seed}"
        assert sorted(in_runs.woken) == sorted(one_by_one.woken), f"seed {seed}"
        taken += in_runs.taken
    assert taken > 20, "hardly anything was taken as a run"


class History:
    """What happens to one ledger, by seed. `log` is all that can be seen of it."""

    def __init__(self, seed: int, *, in_runs: bool) -> None:
        self._random, self._in_runs = Random(seed), in_runs
        self._end = 0
        self.taken = 0
        self.log: list[Any] = []
        self.woken: list[tuple[int, bool]] = []

    async def run(self, sim: Simulation) -> None:
        host, random = StorageHost(sim, journals=1, settings=SETTINGS), self._random
        await host.open()
        for _ in range(random.randrange(1, 12)):
            storage, event = host.storage, random.random()
            if event < 0.75:
                self.log.append(self._add(storage))
            elif event < 0.8:
                self.log.append(type(storage.fence(LEDGER, KEY)))
            elif event < 0.87:
                previous = random.randrange(-1, self._end + 1)
                storage.wait_for_lac(LEDGER, LacWaiter(EntryId(previous), self._waker(previous)))
            elif event < 0.94:
                await storage.checkpoint()
            else:
                await storage.journals.wait_durable(LEDGER, storage.journals.all[0].last)
                await host.crash()
                await host.open()
            self._note(host.storage)
        self.log += [await host.storage.read(LEDGER, EntryId(entry_id)) for entry_id in range(self._end)]
        self.log.append(await host.storage.lac(LEDGER))

    def _waker(self, previous: int) -> Any:
        return lambda has_passed: self.woken.append((previous, has_passed))

    def _add(self, storage: LedgerStorage) -> list[object]:
        random = self._random
        count, step = random.randrange(1, 9), random.choice([1, 1, 1, 2])
        first = self._end if random.random() < 0.7 else max(-2, self._end - random.randrange(6))
        entry_ids = [EntryId(first + place * step) for place in range(count)]
        if random.random() < 0.1:
            random.shuffle(entry_ids)
        if random.random() < 0.1:
            entry_ids[-1] = entry_ids[0]
        lacs = [EntryId(random.choice([-1, entry_id - 1, entry_id + 3])) for entry_id in entry_ids]
        bodies = [self._body(entry_id, lac) for entry_id, lac in zip(entry_ids, lacs, strict=True)]
        key = KEY if random.random() < 0.95 else bytes(20)
        self._end = max(self._end, *entry_ids) + 1
        if self._in_runs and storage.add_run(LEDGER, entry_ids, lacs, bodies, key) is not None:
            self.taken += 1
            return [int] * count
        return [self._add_one(storage, *each, key) for each in zip(entry_ids, lacs, bodies, strict=True)]

    def _add_one(self, storage: LedgerStorage, entry_id: EntryId, lac: EntryId, body: bytes, key: bytes) -> object:
        try:
            result = storage.add(LEDGER, entry_id, lac, body, key, recovery=False)
        except (InvalidArgument, DamagedEntry) as error:
            return type(error)
        return int if isinstance(result, int) else result

    def _body(self, entry_id: EntryId, lac: EntryId) -> bytes:
        random = self._random
        payload = random.randbytes(30 if random.random() < 0.9 else random.choice([0, 3, 20, 60]))
        body = CODEC.prefix(entry_id, payload, lac=lac, length=0) + payload
        return body if random.random() < 0.98 else body[:-1] + bytes([body[-1] ^ 1])

    def _note(self, storage: LedgerStorage) -> None:
        ledger, journal = storage.table.find(LEDGER), storage.journals.all[0]
        self.log.append((storage.touches, storage.write_cache.active_bytes, journal.last))
        if ledger is not None:
            self.log.append((ledger.last, ledger.last_lac, ledger.lac, ledger.rewrites, ledger.digest))
            self.log.append((ledger.gate.fenced, ledger.is_lac_known, sorted(each.previous for each in ledger.waiters)))
