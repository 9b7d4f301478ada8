"""A writer in full flight is shut out, or killed, and a client of the other maker recovers its ledger.

Nothing that was acknowledged is lost, and a writer that lives is told. Bookies are of either kind, and of both.
"""

import asyncio
import random
from pathlib import Path

import pytest

from quire.errors import LedgerFenced
from quire.ledger.client import open_ledgers
from tests.interop.conftest import OpenClient
from tests.interop.ensembles import Bookies, kinds
from tests.interop.ledger_client import Payloads, Secret, Wire, await_entries, java_shut_out, mortal_client
from tests.interop.our_client import INFLIGHT_MAX, PIPELINED, await_acknowledged, keep_writing, read_all, shut_out
from tests.interop.peer import JavaPeer
from tests.support.diary import all_lines, note
from tests.support.ledgers.history import NO_LEDGER, LedgerHistory
from tests.support.servers.killable import ClientProcess
from tests.support.waiting import eventually

ACKNOWLEDGED = 200

both_wires = pytest.mark.parametrize("wire", [2, 3], ids=["v2", "v3"])
every_kind = kinds("apache", "quire", "mixed")


@every_kind
@both_wires
async def test_we_shut_out_a_java_writer_in_full_flight(bookies: Bookies, open_client: OpenClient, wire: Wire) -> None:
    secret, payloads = Secret(), Payloads("shut out by us")
    ledger = await (await open_client(wire)).create(secret)
    await ledger.start_writing(payloads, inflight_max=INFLIGHT_MAX)
    await await_entries(ledger, ACKNOWLEDGED)
    async with open_ledgers(bookies.uri) as ledgers:
        found = await read_all(ledgers, ledger.id, secret)
    ended = await ledger.stop_writing()
    assert ended.error in java_shut_out()
    assert len(found) >= ended.acknowledged
    assert found == payloads.entries(0, len(found) - 1)
    again = await (await open_client(wire)).open(ledger.id, secret)
    assert (await again.state())["lac"] == len(found) - 1


@every_kind
@both_wires
async def test_java_shuts_us_out_in_full_flight(bookies: Bookies, open_client: OpenClient, wire: Wire) -> None:
    secret, payloads, client = Secret(), Payloads("shut out by Java"), await open_client(wire)
    async with open_ledgers(bookies.uri, settings=PIPELINED) as ledgers:
        async with shut_out(ledgers.create(password=secret.password)) as ledger:
            writing = asyncio.create_task(keep_writing(ledger, payloads))
            await await_acknowledged(ledger, ACKNOWLEDGED)
            recovered = await client.open(ledger.id, secret)
            with pytest.raises(LedgerFenced):
                await writing
        lac = (await recovered.state())["lac"]
        assert lac >= ledger.last_add_confirmed
        assert await recovered.check(payloads, lac) == lac + 1
        assert await read_all(ledgers, ledger.id, secret, recovered_by_java=True) == payloads.entries(0, lac)


@every_kind
async def test_both_recover_at_once_and_agree(bookies: Bookies, open_client: OpenClient) -> None:
    """Each of them may be the one who finds the end and says so, or the one who is told."""
    secret, payloads, rival = Secret(), Payloads("agreed"), await open_client(3)
    ledger = await (await open_client(2)).create(secret)
    await ledger.start_writing(payloads, inflight_max=INFLIGHT_MAX)
    await await_entries(ledger, ACKNOWLEDGED)
    async with open_ledgers(bookies.uri) as ledgers:
        theirs, ours = await asyncio.gather(
            rival.open(ledger.id, secret), read_all(ledgers, ledger.id, secret, recovered_by_java=True)
        )
    ended = await ledger.stop_writing()
    assert ended.error in java_shut_out()
    assert len(ours) >= ended.acknowledged
    assert ours == await theirs.read(0, (await theirs.state())["lac"]) == payloads.entries(0, len(ours) - 1)


@every_kind
@both_wires
async def test_we_recover_what_a_killed_java_process_left(bookies: Bookies, tmp_path: Path, wire: Wire) -> None:
    secret, payloads = Secret(), Payloads("killed in Java")
    peer = JavaPeer(tmp_path / "stderr.log")
    try:
        async with asyncio.timeout(60):
            client = await mortal_client(peer, bookies.uri, wire)
            ledger = await client.create(secret)
            await ledger.start_writing(payloads, inflight_max=INFLIGHT_MAX)
            await await_entries(ledger, ACKNOWLEDGED)
            acknowledged = (await ledger.progress()).acknowledged
    finally:
        peer.kill()
    async with open_ledgers(bookies.uri) as ledgers:
        found = await read_all(ledgers, ledger.id, secret)
    assert len(found) >= acknowledged
    assert found == payloads.entries(0, len(found) - 1)


@every_kind
@both_wires
async def test_java_recovers_what_a_killed_process_of_ours_left(
    bookies: Bookies, open_client: OpenClient, tmp_path: Path, wire: Wire
) -> None:
    """Its diary tells what it sent and what was acknowledged up to the moment of its death."""
    writer = ClientProcess("writer", "killed", tmp_path, bookies.uri, seed=random.SystemRandom().getrandbits(30))

    ledger_id = NO_LEDGER

    async def has_written() -> bool:
        nonlocal ledger_id
        assert not writer.died_by_itself, writer.log_end()
        lines = all_lines(writer.diaries)
        ledger_id = max(lines, default=NO_LEDGER)
        return sum(line.event == "acknowledged" for _, line in lines.get(ledger_id, [])) > 20

    writer.start()
    try:
        await eventually(has_written, within_s=60, what="entries of one ledger are acknowledged")
    finally:
        writer.kill()
    history = LedgerHistory(ledger_id)
    note(history, all_lines(writer.diaries)[ledger_id])
    async with open_ledgers(bookies.uri) as ledgers:
        digest = (await ledgers.ledgers_metadata.read(history.ledger_id)).metadata.digest
        assert digest is not None
        secret = Secret(digest, b"")
        recovered = await (await open_client(wire)).open(history.ledger_id, secret)
        found = await recovered.read(0, (await recovered.state())["lac"])
        assert await read_all(ledgers, history.ledger_id, secret, recovered_by_java=True) == found
    payloads = [entry.payload for entry in found]
    assert len(history.acknowledged) <= len(payloads) == len(set(payloads))
    assert set(payloads) <= history.sent
    assert all(payloads[entry_id] == payload for entry_id, payload in history.acknowledged.items())
