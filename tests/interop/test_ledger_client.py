"""Java's ledger client writes, reads and deletes ledgers on three bookies, and cannot tell whose they are.

Apache's own bookies are asked too: they prove that the tests ask for what is right.
"""

import pytest

from quire.types import DigestType, EntryId
from tests.interop.conftest import OpenClient
from tests.interop.ensembles import Bookies, kinds
from tests.interop.ledger_client import JavaLedgerClient, Payloads, Secret, Wire
from tests.interop.peer import JavaError

PASSWORDS = (b"", b"pass\x00word")
FRAME_BYTES_MAX = 5 * 2**20
PREFIX_BYTES = Secret().codec(0).prefix_bytes

both_wires = pytest.mark.parametrize("wire", [2, 3], ids=["v2", "v3"])


SECRETS = [Secret(digest, password) for digest in DigestType for password in PASSWORDS]


# --- Writing and reading


@kinds("apache", "quire")
@both_wires
@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: f"{secret.digest.name}-{secret.password!r}")
async def test_what_java_writes_it_reads_back(
    bookies: Bookies, open_client: OpenClient, wire: Wire, secret: Secret
) -> None:
    """By the writer, by another client after the end, in the other wire version, and from each bookie alone."""
    payloads = Payloads(f"{secret}", bytes_max=3_000)
    writer, reader = await open_client(wire), await open_client(5 - wire)
    custom = {"application": b"\x00\xff"}
    ledger = await writer.create(secret, quorum=(3, 3, 3), custom=custom)
    assert await ledger.append(payloads, 100) == list(range(100))
    written = payloads.entries(0, 99)
    assert await ledger.read(0, 99) == written
    await ledger.seal()

    opened = await reader.open(ledger.id, secret)
    state = await opened.state()
    assert (state["lac"], state["length"], state["closed"]) == (99, written[-1].length, True)
    assert state["metadata"]["custom"].keys() == custom.keys()
    assert await opened.read(0, 99) == written
    for bookie in bookies.names:
        code, stored = await reader.read_from(bookie, ledger.id, 57)
        assert code == "OK"
        found = secret.codec(ledger.id).decode(stored, entry_id=EntryId(57))
        assert (found.length, found.payload) == (written[57].length, written[57].payload)


@kinds("apache", "quire")
@both_wires
async def test_striped_entries_are_where_they_belong_and_nowhere_else(
    bookies: Bookies, open_client: OpenClient, wire: Wire
) -> None:
    client, payloads = await open_client(wire), Payloads("striped")
    ledger = await client.create(Secret(), quorum=(3, 2, 2))
    await ledger.append(payloads, 30)
    ensemble = (await ledger.ensembles())[0]
    for entry in range(30):
        answers = {bookie: (await client.read_from(bookie, ledger.id, entry))[0] for bookie in ensemble}
        holders = {ensemble[entry % 3], ensemble[(entry + 1) % 3]}
        assert answers == {bookie: "OK" if bookie in holders else "BKNoSuchEntryException" for bookie in ensemble}
    await ledger.seal()
    assert await (await client.open(ledger.id, Secret())).read(0, 29) == payloads.entries(0, 29)


@kinds("apache", "quire")
@both_wires
async def test_the_largest_entry_that_fits_a_frame(bookies: Bookies, open_client: OpenClient, wire: Wire) -> None:
    """In version 2 to the byte; version 3 has a few more around it."""
    around_bytes = 4 + 4 + 20 + PREFIX_BYTES if wire == 2 else 512
    size = FRAME_BYTES_MAX - around_bytes
    client, payloads = await open_client(wire), Payloads("largest", bytes_min=size, bytes_max=size)
    ledger = await client.create(Secret())
    assert await ledger.append(payloads, 2) == [0, 1]
    assert await ledger.read(1, 1) == payloads.entries(1, 1)


# --- Readers beside the writer


@kinds("apache", "quire")
@both_wires
async def test_a_reader_beside_the_writer_sees_what_is_confirmed(
    bookies: Bookies, open_client: OpenClient, wire: Wire
) -> None:
    """The newest entry tells of the one before it. What is not confirmed yet is there for who asks for it."""
    client, payloads = await open_client(wire), Payloads("beside")
    ledger = await client.create(Secret())
    await ledger.append(payloads, 9)
    await ledger.append(payloads, 1, first=9)

    reader = await (await open_client(wire)).open(ledger.id, Secret(), recover=False)
    assert (await reader.state())["lac"] == 8
    assert await reader.last_add_confirmed() == await reader.try_last_add_confirmed() == 8
    assert await reader.read(0, 8) == payloads.entries(0, 8)
    with pytest.raises(JavaError, match="BKReadException"):
        await reader.read(9, 9)
    assert await reader.read(5, 9, unconfirmed=True) == payloads.entries(5, 9)
    with pytest.raises(JavaError, match="BKNoSuchEntryException"):
        await reader.read(10, 10, unconfirmed=True)

    await ledger.append(payloads, 1, first=10)
    assert await reader.last_add_confirmed() == 9
    assert await reader.read(9, 9) == payloads.entries(9, 9)


@kinds("apache", "quire")
@both_wires
@pytest.mark.parametrize("recover", [False, True], ids=["beside", "recovering"])
async def test_a_ledger_without_entries(bookies: Bookies, open_client: OpenClient, wire: Wire, recover: bool) -> None:
    client = await open_client(wire)
    ledger = await client.create(Secret())
    reader = await client.open(ledger.id, Secret(), recover=recover)
    state = await reader.state()
    assert (state["lac"], state["length"], state["closed"]) == (-1, 0, recover)
    assert await reader.last_add_confirmed() == -1
    with pytest.raises(JavaError, match=r"BKNoSuchEntryException|BKNoSuchLedgerExistsException"):
        await reader.read(0, 0, unconfirmed=True)


# --- Batches


async def entries_in_a_batch(client: JavaLedgerClient, bytes_max: int, count_max: int) -> list[int]:
    payloads = Payloads("batch", bytes_min=100, bytes_max=100)
    ledger = await client.create(Secret())
    await ledger.append(payloads, 50)
    found = await ledger.batch_read(10, count_max=count_max, bytes_max=bytes_max)
    assert found == payloads.entries(10, 9 + len(found))
    return [entry.entry_id for entry in found]


@kinds("apache", "quire")
@pytest.mark.parametrize(
    ("entries", "slack_bytes", "count_max"), [(7, 0, 20), (6, -1, 20), (20, 0, 5), (20, 0, 20), (1, -139, 3)]
)
async def test_a_batch_ends_at_its_limits(
    bookies: Bookies, open_client: OpenClient, entries: int, slack_bytes: int, count_max: int
) -> None:
    """To the byte: a client that fell back to single reads would get as many entries as it asked for."""
    entry_bytes = 4 + PREFIX_BYTES + 100
    fitting = entries if slack_bytes == 0 else entries + 1
    bytes_max = 36 + fitting * entry_bytes + slack_bytes
    expected = min(entries, count_max)
    found = await entries_in_a_batch(await open_client(2), bytes_max, count_max)
    assert found == list(range(10, 10 + expected))


@kinds("apache", "quire")
async def test_a_batch_of_any_size_and_what_is_not_confirmed(bookies: Bookies, open_client: OpenClient) -> None:
    client, payloads = await open_client(2), Payloads("unconfirmed batch", bytes_max=40_000)
    ledger = await client.create(Secret(DigestType.MAC))
    await ledger.append(payloads, 40)
    reader = await (await open_client(2)).open(ledger.id, Secret(DigestType.MAC), recover=False)
    found = await reader.batch_read(0, count_max=100, bytes_max=4 * 2**20, unconfirmed=True)
    assert found == payloads.entries(0, len(found) - 1)
    assert len(found) > 1
    assert (await reader.batch_read(39, count_max=5, bytes_max=1, unconfirmed=True)) == payloads.entries(39, 39)
    with pytest.raises(JavaError, match="BKNoSuchEntryException"):
        await reader.batch_read(40, count_max=5, bytes_max=1_000, unconfirmed=True)


# --- Durable later


@kinds("apache", "quire")
async def test_deferred_entries_are_confirmed_by_a_force(bookies: Bookies, open_client: OpenClient) -> None:
    client, payloads = await open_client(3), Payloads("deferred")
    ledger = await client.create(Secret(), deferred=True)
    assert await ledger.append(payloads, 40) == list(range(40))
    assert (await ledger.state())["lac"] == -1
    await ledger.force()
    assert (await ledger.state())["lac"] == 39
    await ledger.append(payloads, 10, first=40)
    await ledger.force()
    await ledger.seal()
    opened = await (await open_client(3)).open(ledger.id, Secret())
    assert (await opened.state())["lac"] == 49
    assert await opened.read(0, 49) == payloads.entries(0, 49)


# --- Deleting


@kinds("apache", "quire")
@both_wires
async def test_a_deleted_ledger_is_gone_and_the_others_stay(
    bookies: Bookies, open_client: OpenClient, wire: Wire
) -> None:
    client, payloads = await open_client(wire), Payloads("deleted")
    deleted, kept = await client.create(Secret()), await client.create(Secret())
    for ledger in (deleted, kept):
        await ledger.append(payloads, 10)
        await ledger.seal()
    await client.delete(deleted.id)
    with pytest.raises(JavaError, match="BKNoSuchLedgerExistsOnMetadataServerException"):
        await client.open(deleted.id, Secret())
    assert await (await client.open(kept.id, Secret())).read(0, 9) == payloads.entries(0, 9)
