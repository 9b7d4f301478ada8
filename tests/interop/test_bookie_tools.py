"""The tools that come with Apache BookKeeper, as an operator uses them on running bookies."""

import re
import shutil

from tests.interop.conftest import OpenClient
from tests.interop.ensembles import Bookies, kinds
from tests.interop.ledger_client import JavaLedger, JavaLedgerClient, Payloads, Secret
from tests.interop.shell import BookieShell

SECRET = Secret(password=b"")  # The tools that read do not ask for one: they take it from the metadata.
PAYLOADS = Payloads("tools", bytes_min=20)
V2 = {"useV2WireProtocol": "true"}  # Version 3 is what the tools take by themselves.


async def ten_entries(client: JavaLedgerClient) -> JavaLedger:
    ledger = await client.create(SECRET, quorum=(3, 3, 3))
    await ledger.append(PAYLOADS, 10)
    return ledger


@kinds("apache", "quire")
async def test_bookiesanity_finds_a_bookie_sane(bookies: Bookies, shell: BookieShell) -> None:
    """It writes and reads a ledger on the one bookie that its configuration names."""
    for bookie, settings in zip(bookies.names, (V2, {}), strict=False):
        told = await shell.run(bookies.uri, "bookiesanity", "-e", "50", "-t", "20", bookieId=bookie, **settings)
        assert told.code == 0, told.text
        assert "Bookie sanity test succeeded" in told.text


@kinds("apache", "quire")
async def test_readledger_reads_from_all_or_from_one_bookie(
    bookies: Bookies, open_client: OpenClient, shell: BookieShell
) -> None:
    ledger = await ten_entries(await open_client(3))
    await ledger.seal()
    words = ("readledger", "-m", "-ledgerid", str(ledger.id), "-firstentryid", "2", "-lastentryid", "7")
    told = await shell.run(bookies.uri, *words)
    assert told.code == 0, told.text
    assert told.entries() == [2, 3, 4, 5, 6, 7]

    for bookie, settings in zip(bookies.names, (V2, {}), strict=False):  # Here the tool leaves the last entry out.
        told = await shell.run(bookies.uri, *words, "-bookie", bookie, **settings)
        assert told.code == 0, told.text
        assert told.entries() == [2, 3, 4, 5, 6]
        assert PAYLOADS[4][:16].hex(" ") in told.dumped_bytes()


@kinds("apache", "quire")
async def test_readledger_recovers_an_open_ledger(
    bookies: Bookies, open_client: OpenClient, shell: BookieShell
) -> None:
    client = await open_client(3)
    ledger = await ten_entries(client)
    told = await shell.run(bookies.uri, "readledger", "-r", "-ledgerid", str(ledger.id), "-firstentryid", "0")
    assert told.code == 0, told.text
    assert told.entries() == list(range(10))
    state = (await (await client.open(ledger.id, SECRET, recover=False)).state())["metadata"]
    assert (state["state"], state["last_entry_id"]) == ("CLOSED", 9)


@kinds("apache", "quire")
async def test_the_cluster_and_its_ledgers_are_shown(
    bookies: Bookies, open_client: OpenClient, shell: BookieShell
) -> None:
    ledger = await ten_entries(await open_client(3))
    await ledger.seal()
    told = await shell.run(bookies.uri, "ledgermetadata", "-ledgerid", str(ledger.id))
    assert told.code == 0, told.text
    assert told.ledgers() == [ledger.id]
    assert "state=CLOSED" in told.text
    assert all(bookie in told.text for bookie in bookies.names)

    told = await shell.run(bookies.uri, "listbookies", "-rw")
    assert told.bookies() == sorted((bookie.name, "127.0.0.1", bookie.port) for bookie in bookies.members)
    assert (await shell.run(bookies.uri, "listbookies", "-a")).bookies() == told.bookies(), "each has its cookie"


@kinds("apache", "quire")
async def test_bookieinfo_shows_the_disks(bookies: Bookies, shell: BookieShell) -> None:
    told = await shell.run(bookies.uri, "bookieinfo")
    assert told.code == 0, told.text
    total = shutil.disk_usage(bookies.members[0].folder).total
    shown = re.findall(r"BookieID:(\S+), .*total=([0-9]+)", told.text)
    assert sorted(shown) == [(bookie, str(total)) for bookie in sorted(bookies.names)]
