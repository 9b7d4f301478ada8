"""Five bookies, three writers, a recoverer and a tailer as real processes, while all of them are killed and paused.

Afterwards everything is repaired, and each ledger that was ever made is checked as after a simulation. For longer than
a minute: `make chaos SECONDS=3600`.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from quire.errors import QuireError
from quire.ledger.client import LedgerClient, open_ledgers
from quire.runtime import real_runtime
from quire.types import BookieId, LedgerId
from tests.integration.ledger.chaos import Chaos
from tests.support.diary import all_lines, note
from tests.support.ledgers.history import NO_LEDGER, LedgerHistory, check
from tests.support.programs.chaos_client import SETTINGS
from tests.support.servers.killable import BookieProcess, ClientProcess
from tests.support.servers.sqlite_bookie import new_cluster
from tests.support.waiting import at_a_random_moment, eventually

pytestmark = pytest.mark.extended

SECONDS = float(os.environ.get("QUIRE_CHAOS_SECONDS", "60"))
SEED = int(os.environ.get("QUIRE_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
BOOKIES = [f"b{number}" for number in range(5)]
ROLES = {"w1": "writer", "w2": "writer", "w3": "writer", "r1": "recoverer", "t1": "tailer"}
HARM = {"bookie killed": SECONDS / 20, "bookie paused": SECONDS / 20, "writer killed": SECONDS / 40}  # At least.
SESSION_S = 2.0  # Short: a pause is then often longer, and its bookie is gone for the others meanwhile.


@contextmanager
def ended_at_last(chaos: Chaos) -> Iterator[None]:
    """No process outlives the test. If it fails, it says what was done to them."""
    try:
        yield
    except BaseException:
        print("\n".join(chaos.story))
        raise
    finally:
        chaos.kill_all()


class Witness:
    """Looks at the metadata all the time, so that histories know what was ever published."""

    def __init__(self, ledgers: LedgerClient) -> None:
        self._ledgers = ledgers
        self.histories: dict[LedgerId, LedgerHistory] = {}

    async def look_on(self) -> None:
        while True:
            try:
                for ledger_id in sorted([ledger_id async for ledger_id in self._ledgers.scan()])[-6:]:
                    history = self.histories.setdefault(ledger_id, LedgerHistory(ledger_id))
                    history.on_metadata((await self._ledgers.ledgers_metadata.read(ledger_id)).metadata)
            except QuireError:
                pass  # The store can be out of reach for a moment: whoever has its lock may be paused.
            await at_a_random_moment(0.1, 1.0)


async def prove(ledgers: LedgerClient, witness: Witness, clients: list[ClientProcess]) -> Counter[str]:
    """Check every ledger there is. Returns what the histories were made of."""
    found, lines = Counter[str](), all_lines([path for client in clients for path in client.diaries])
    existing = sorted([ledger_id async for ledger_id in ledgers.scan()])
    assert set(lines) - {NO_LEDGER} <= set(existing), "a ledger is gone"
    for ledger_id in existing:
        history = witness.histories.pop(ledger_id, None) or LedgerHistory(ledger_id)
        note(history, lines.get(ledger_id, []))
        await recovered(ledgers, ledger_id)
        await check(ledgers, history)
        found["ledgers"] += 1
        found["acknowledged"] += len(history.acknowledged)
        found["read meanwhile"] += len(history.shown)
        found["fragments"] += len(history.metadata.fragments) if history.metadata else 0
    for _, line in (each for several in lines.values() for each in several):
        if line.event == "gave up":
            found[str(line.facts[0])] += 1
    return found


async def recovered(ledgers: LedgerClient, ledger_id: LedgerId) -> None:
    """Bookies that have just come back are noticed by and by."""

    async def try_it() -> bool:
        try:
            await ledgers.recover(ledger_id)
        except QuireError as error:
            if not error.retryable:
                raise
            return False
        return True

    await eventually(try_it, within_s=60, what=f"ledger {ledger_id} is recovered")


@pytest.mark.xdist_group("load")  # Tests of this group take the machine for themselves: one after the other.
@pytest.mark.timeout(SECONDS * 2 + 300)
async def test_ledgers_keep_their_promises_while_processes_die(tmp_path: Path) -> None:
    print(f"QUIRE_CHAOS_SEED={SEED}")
    rng, runtime = random.Random(SEED), real_runtime()
    uri = await new_cluster(runtime, tmp_path)
    bookies = [BookieProcess(name, tmp_path, uri, session_s=SESSION_S) for name in BOOKIES]
    clients = [ClientProcess(role, name, tmp_path, uri, seed=rng.getrandbits(30)) for name, role in ROLES.items()]
    async with open_ledgers(uri, settings=SETTINGS, runtime=runtime) as ledgers:
        chaos = Chaos(rng, bookies, clients, lambda name: BookieId(name) in ledgers.pool.writable)
        with ended_at_last(chaos):

            async def all_answer() -> bool:
                """To be listed is not enough: that may be left from the life before."""
                chaos.check_alive()
                try:
                    for name in BOOKIES:
                        channel = await ledgers.pool.connect(BookieId(name), 3, timeout_s=SETTINGS.read_timeout_s)
                        await channel.bookie_info(timeout_s=SETTINGS.read_timeout_s)
                except QuireError:
                    return False
                return {BookieId(name) for name in BOOKIES} <= ledgers.pool.writable

            for bookie in bookies:
                bookie.start()
            await eventually(all_answer, within_s=60, what="all bookies live")
            for client in clients:
                client.start()
            witness = Witness(ledgers)
            looking, harming = asyncio.create_task(witness.look_on()), asyncio.create_task(chaos.run(SECONDS, HARM))
            await asyncio.wait([looking, harming], return_when=asyncio.FIRST_COMPLETED)
            looking.cancel()
            await harming
            with suppress(asyncio.CancelledError):
                await looking
            chaos.repair()
            await eventually(all_answer, within_s=60, what="all bookies live again")
            found = await prove(ledgers, witness, clients)
            chaos.check_alive()
    await runtime.disk.aclose()
    print(dict(chaos.happened), dict(found))
    assert found["acknowledged"] > 50 * SECONDS, "too little was written to prove anything"
    assert found["read meanwhile"] > 10 * SECONDS
    assert found["fragments"] > found["ledgers"], "no bookie was ever replaced"
    assert found["LedgerFenced"] >= SECONDS / 40
    assert {what: chaos.happened[what] for what, count in HARM.items() if chaos.happened[what] < count} == {}
