"""Our ledger client and Java's on the same ledgers, on bookies of either kind: each reads what the other wrote."""

import pytest

from quire.errors import WrongPassword
from quire.ledger.client import open_ledgers
from quire.types import DigestType
from tests.interop.conftest import OpenClient
from tests.interop.ensembles import Bookies, kinds
from tests.interop.ledger_client import Payloads, Secret
from tests.interop.our_client import read_all

SECRETS = [Secret(digest, password) for digest in DigestType for password in (b"", b"pass\x00word")]
every_secret = pytest.mark.parametrize(
    "secret", SECRETS, ids=lambda secret: f"{secret.digest.name}-{secret.password!r}"
)


@kinds("apache", "quire", "mixed")
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


@kinds("apache", "quire", "mixed")
@every_secret
async def test_we_read_what_java_wrote(bookies: Bookies, open_client: OpenClient, secret: Secret) -> None:
    payloads = Payloads(f"java's {secret}", bytes_max=6_000)
    ledger = await (await open_client(3)).create(secret, quorum=(3, 2, 2))
    await ledger.append(payloads, 100)
    await ledger.seal()
    async with open_ledgers(bookies.uri) as ledgers:
        assert await read_all(ledgers, ledger.id, secret) == payloads.entries(0, 99)
        with pytest.raises(WrongPassword):
            await read_all(ledgers, ledger.id, Secret(secret.digest, b"another"))
