"""What one bookie answers to single requests of Java's client: the answers that quorums and recovery are built on."""

import shutil

import pytest

from quire.codec.entry import stored_ids, stored_lac
from quire.types import EntryId
from tests.interop.conftest import OpenClient
from tests.interop.ensembles import Bookies, kinds
from tests.interop.ledger_client import Secret, Wire

NO_LEDGER, NO_ENTRY = "BKNoSuchLedgerExistsException", "BKNoSuchEntryException"
FENCED, UNAUTHORIZED, READ_FAILED = "BKLedgerFencedException", "BKUnauthorizedAccessException", "BKReadException"
LAST = -1
KEY, WRONG_KEY = Secret().key, Secret(password=b"wrong").key

both_wires = pytest.mark.parametrize("wire", [2, 3], ids=["v2", "v3"])


@kinds("apache", "quire")
@both_wires
async def test_what_is_not_there_is_denied_in_so_many_words(
    bookies: Bookies, open_client: OpenClient, wire: Wire
) -> None:
    client, bookie = await open_client(wire), bookies.names[0]
    ledger = (await client.create(Secret())).id
    for entry in (0, LAST):
        assert await client.read_from(bookie, ledger, entry) == (NO_LEDGER, b"")
    assert await client.add_to(bookie, ledger, 3, b"third", key=KEY) == "OK"
    for entry in (2, 4):
        assert await client.read_from(bookie, ledger, entry) == (NO_ENTRY, b"")


@kinds("apache", "quire")
@both_wires
async def test_entries_come_in_any_order_and_more_than_once(
    bookies: Bookies, open_client: OpenClient, wire: Wire
) -> None:
    client, bookie = await open_client(wire), bookies.names[0]
    ledger = (await client.create(Secret())).id
    for entry in (5, 2, 9, 2, 3):
        assert await client.add_to(bookie, ledger, entry, b"%d" % entry, key=KEY) == "OK"
    for entry in (2, 3, 5, 9):
        code, stored = await client.read_from(bookie, ledger, entry)
        found = Secret(password=b"").codec(ledger).decode(stored, entry_id=EntryId(entry))
        assert (code, found.lac, found.payload) == ("OK", entry - 1, b"%d" % entry)
    code, last = await client.read_from(bookie, ledger, LAST)
    assert (code, stored_ids(last)) == ("OK", (ledger, 9, 8))
    assert await (await open_client(3)).entries_at(bookie, ledger) == [2, 3, 5, 9]


@kinds("apache", "quire")
@both_wires
async def test_the_key_of_the_first_request_counts(bookies: Bookies, open_client: OpenClient, wire: Wire) -> None:
    client, bookie = await open_client(wire), bookies.names[0]
    ledger = (await client.create(Secret())).id
    assert await client.add_to(bookie, ledger, 0, b"", key=KEY) == "OK"
    assert await client.add_to(bookie, ledger, 1, b"", key=WRONG_KEY) == UNAUTHORIZED
    assert await client.add_to(bookie, ledger, 1, b"", key=WRONG_KEY, recovery=True) == UNAUTHORIZED
    assert await client.read_from(bookie, ledger, LAST, fence_key=WRONG_KEY) == (UNAUTHORIZED, b"")
    assert await client.write_lac_to(bookie, ledger, 0, key=WRONG_KEY) == UNAUTHORIZED
    assert await client.add_to(bookie, ledger, 1, b"", key=KEY) == "OK", "refused requests change nothing"


@kinds("apache", "quire")
@both_wires
async def test_a_fence_stops_all_but_recovery(bookies: Bookies, open_client: OpenClient, wire: Wire) -> None:
    client, bookie = await open_client(wire), bookies.names[0]
    ledger = (await client.create(Secret())).id
    assert await client.add_to(bookie, ledger, 0, b"before", key=KEY) == "OK"
    code, stored = await client.read_from(bookie, ledger, LAST, fence_key=KEY)
    assert (code, stored_ids(stored)[1]) == ("OK", 0)
    for entry in (0, 1):
        assert await client.add_to(bookie, ledger, entry, b"", key=KEY) == FENCED
    assert await client.add_to(bookie, ledger, 1, b"", key=KEY, recovery=True) == "OK"
    assert (await client.read_from(bookie, ledger, 1, fence_key=KEY))[0] == "OK", "fencing twice is no error"
    assert await client.add_to(bookie, ledger, 2, b"", key=KEY) == FENCED
    assert await client.write_lac_to(bookie, ledger, 1, key=KEY) == "OK"


@kinds("apache", "quire")
@both_wires
async def test_a_ledger_is_fenced_before_its_first_entry(bookies: Bookies, open_client: OpenClient, wire: Wire) -> None:
    client, bookie = await open_client(wire), bookies.names[0]
    ledger = (await client.create(Secret())).id
    assert await client.read_from(bookie, ledger, LAST, fence_key=KEY) == (NO_ENTRY, b"")
    assert await client.add_to(bookie, ledger, 0, b"", key=KEY) == FENCED
    assert await client.add_to(bookie, ledger, 0, b"", key=WRONG_KEY, recovery=True) == UNAUTHORIZED
    assert await client.add_to(bookie, ledger, 0, b"", key=KEY, recovery=True) == "OK"


@kinds("apache", "quire")
@both_wires
async def test_a_lac_is_kept_beside_the_entries(bookies: Bookies, open_client: OpenClient, wire: Wire) -> None:
    client, bookie = await open_client(wire), bookies.names[0]
    ledger = (await client.create(Secret())).id
    assert await client.read_lac_from(bookie, ledger) == (NO_ENTRY, b"", b"")
    assert await client.add_to(bookie, ledger, 7, b"", key=KEY) == "OK"
    code, packet, last = await client.read_lac_from(bookie, ledger)
    assert (code, packet, stored_ids(last)) == ("OK", b"", (ledger, 7, 6))
    assert await client.write_lac_to(bookie, ledger, 7, key=KEY) == "OK"
    code, packet, last = await client.read_lac_from(bookie, ledger)
    assert (code, stored_lac(packet), stored_ids(last)) == ("OK", (ledger, 7), (ledger, 7, 6))


@kinds("apache", "quire")
async def test_a_lac_without_any_entry(bookies: Bookies, open_client: OpenClient) -> None:
    """Apache calls the missing entry an I/O error, and so a reader tries the next bookie."""
    client, bookie = await open_client(3), bookies.names[0]
    ledger = (await client.create(Secret())).id
    assert await client.write_lac_to(bookie, ledger, 4, key=KEY) == "OK"
    code, _, last = await client.read_lac_from(bookie, ledger)
    assert (code, last) == (READ_FAILED, b"")


@kinds("apache", "quire")
async def test_a_batch_ends_at_the_first_gap(bookies: Bookies, open_client: OpenClient) -> None:
    client, bookie = await open_client(2), bookies.names[0]
    ledger = (await client.create(Secret())).id
    limits = {"count_max": 10, "bytes_max": 100_000}
    assert await client.batch_read_from(bookie, ledger, 0, **limits) == (NO_LEDGER, [])
    for entry in (0, 1, 2, 4):
        assert await client.add_to(bookie, ledger, entry, b"x" * entry, key=KEY) == "OK"
    code, stored = await client.batch_read_from(bookie, ledger, 0, **limits)
    assert (code, [stored_ids(entry)[1] for entry in stored]) == ("OK", [0, 1, 2])
    assert await client.batch_read_from(bookie, ledger, 3, **limits) == (NO_ENTRY, [])
    code, stored = await client.batch_read_from(bookie, ledger, 4, **limits)
    assert (code, len(stored)) == ("OK", 1)


@kinds("apache", "quire")
async def test_a_force_succeeds_for_whatever_ledger(bookies: Bookies, open_client: OpenClient) -> None:
    client, bookie = await open_client(3), bookies.names[0]
    ledger = (await client.create(Secret())).id
    assert await client.force_at(bookie, ledger) == "OK"
    assert await client.add_to(bookie, ledger, 0, b"", key=KEY) == "OK"
    assert await client.force_at(bookie, ledger) == "OK"


@kinds("apache", "quire")
@both_wires
async def test_a_bookie_knows_its_disk(bookies: Bookies, open_client: OpenClient, wire: Wire) -> None:
    client = await open_client(wire)
    for bookie in bookies.members:
        code, total, free = await client.disk_of(bookie.name)
        assert (code, total) == ("OK", shutil.disk_usage(bookie.folder).total)
        assert 0 < free < total
