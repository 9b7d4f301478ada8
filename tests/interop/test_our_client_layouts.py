"""A ledger's whole life between our client and Java's, in each layout of the metadata and with each digest.

Each ensemble has bookies of both makers. One client writes; the other reads along, then recovers, and so shuts the
writer out.
"""

import pytest

from quire.errors import LedgerFenced
from quire.ledger.client import open_ledgers
from quire.types import DigestType
from tests.interop.conftest import OpenClient
from tests.interop.ensembles import Bookies, kinds
from tests.interop.ledger_client import Payloads, Secret, follow
from tests.interop.our_client import read_all
from tests.interop.peer import JavaError

ENTRIES = 30

every_digest = pytest.mark.parametrize("digest", DigestType, ids=lambda digest: digest.name)
every_layout = kinds("flat", "mixed", "longhierarchical")  # Mixed is hierarchical.


@every_layout
@every_digest
async def test_java_follows_and_recovers_our_ledger(
    bookies: Bookies, open_client: OpenClient, digest: DigestType
) -> None:
    secret, payloads = Secret(digest), Payloads(f"ours {digest}", bytes_max=2_000)
    async with (
        open_ledgers(bookies.uri) as ledgers,
        ledgers.create(digest=digest, password=secret.password, custom={"who": b"us"}) as ledger,
    ):
        await ledger.append_many([payloads[number] for number in range(ENTRIES)])
        await ledger.append(payloads[ENTRIES])  # Tells readers that those before it are confirmed.
        reader = await (await open_client(3)).open(ledger.id, secret, recover=False)
        for entry in range(ENTRIES):
            assert await follow(reader, payloads, entry, parallel=False) == 1
        recovered = await (await open_client(2)).open(ledger.id, secret)
        assert await recovered.read(0, ENTRIES) == payloads.entries(0, ENTRIES)
        state = await recovered.state()
        assert (state["closed"], state["lac"], list(state["metadata"]["custom"])) == (True, ENTRIES, ["who"])
        with pytest.raises(LedgerFenced):
            await ledger.append(b"too late")


@every_layout
@every_digest
async def test_we_follow_and_recover_a_ledger_of_javas(
    bookies: Bookies, open_client: OpenClient, digest: DigestType
) -> None:
    secret, payloads = Secret(digest), Payloads(f"java's {digest}", bytes_max=2_000)
    ledger = await (await open_client(3)).create(secret, quorum=(3, 2, 2), custom={"who": b"java"})
    await ledger.append(payloads, ENTRIES)
    await ledger.append(payloads, 1, first=ENTRIES)
    async with open_ledgers(bookies.uri) as ledgers:
        assert await read_all(ledgers, ledger.id, secret, recover=False) == payloads.entries(0, ENTRIES - 1)
        assert await read_all(ledgers, ledger.id, secret) == payloads.entries(0, ENTRIES)
        assert (await ledgers.ledgers_metadata.read(ledgers.id_of(ledger.id))).metadata.custom == {"who": b"java"}
    with pytest.raises(JavaError, match="BKLedgerFencedException"):
        await ledger.append(payloads, 1)
