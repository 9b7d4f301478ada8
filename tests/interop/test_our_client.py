"""Our ledger client and Java's on the same ledgers, on bookies of either kind.

Each reads what the other wrote, and each recovers what the other left open.
"""

import pytest

from quire.errors import LedgerFenced, WrongPassword
from quire.ledger.client import LedgerClient, open_ledgers
from quire.types import DigestType
from tests.interop.conftest import OpenClient
from tests.interop.ensembles import Bookies, kinds
from tests.interop.ledger_client import Payloads, Secret
from tests.interop.peer import JavaError

SECRETS = [Secret(digest, password) for digest in DigestType for password in (b"", b"pass\x00word")]
every_secret = pytest.mark.parametrize(
    "secret", SECRETS, ids=lambda secret: f"{secret.digest.name}-{secret.password!r}"
)


async def read_all(ledgers: LedgerClient, ledger_id: int, secret: Secret) -> tuple[list[bytes], int]:
    async with ledgers.open(ledger_id, password=secret.password) as reader:
        return [entry.payload async for entry in reader.read()], reader.length


@kinds("apache", "quire")
@every_secret
async def test_java_reads_what_we_wrote(bookies: Bookies, open_client: OpenClient, secret: Secret) -> None:
    payloads = Payloads(f"ours {secret}", bytes_max=6_000)
    async with (
        open_ledgers(bookies.uri) as ledgers,
        ledgers.create(digest=secret.digest, password=secret.password, custom={"who": b"us"}) as ledger,
    ):
        await ledger.append_many([payloads[number] for number in range(100)])
        ledger_id = ledger.id
    opened = await (await open_client(2)).open(ledger_id, secret)
    assert await opened.read(0, 99) == payloads.entries(0, 99)
    assert (await opened.state())["closed"]


@kinds("apache", "quire")
@every_secret
async def test_we_read_what_java_wrote(bookies: Bookies, open_client: OpenClient, secret: Secret) -> None:
    payloads = Payloads(f"java's {secret}", bytes_max=6_000)
    ledger = await (await open_client(3)).create(secret, quorum=(3, 2, 2))
    await ledger.append(payloads, 100)
    await ledger.seal()
    async with open_ledgers(bookies.uri) as ledgers:
        found, length = await read_all(ledgers, ledger.id, secret)
        with pytest.raises(WrongPassword):
            await read_all(ledgers, ledger.id, Secret(secret.digest, b"another"))
    assert found == [entry.payload for entry in payloads.entries(0, 99)]
    assert length == payloads.entries(0, 99)[-1].length


@kinds("apache", "quire")
@pytest.mark.parametrize("wire", [2, 3], ids=["v2", "v3"])
async def test_we_recover_from_under_a_java_writer(bookies: Bookies, open_client: OpenClient, wire: int) -> None:
    """It loses nothing that it was told is safe, and learns that it may not go on."""
    secret, payloads = Secret(), Payloads("recovered by us")
    ledger = await (await open_client(2 if wire == 2 else 3)).create(secret, quorum=(3, 3, 2))
    await ledger.append(payloads, 40)
    async with open_ledgers(bookies.uri) as ledgers:
        found, _ = await read_all(ledgers, ledger.id, secret)
    assert found == [entry.payload for entry in payloads.entries(0, 39)]
    with pytest.raises(JavaError) as refused:
        await ledger.append(payloads, 1)
    assert "Fenced" in refused.value.name


@kinds("apache", "quire")
@pytest.mark.parametrize("wire", [2, 3], ids=["v2", "v3"])
async def test_java_recovers_from_under_us(bookies: Bookies, open_client: OpenClient, wire: int) -> None:
    secret, payloads = Secret(), Payloads("recovered by Java")
    async with open_ledgers(bookies.uri) as ledgers, ledgers.create(password=secret.password) as ledger:
        await ledger.append_many([payloads[number] for number in range(40)])
        opened = await (await open_client(2 if wire == 2 else 3)).open(ledger.id, secret)
        assert await opened.read(0, 39) == payloads.entries(0, 39)
        with pytest.raises(LedgerFenced):
            await ledger.append(b"too late")
