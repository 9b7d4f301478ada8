"""The ledger client: create, open, recover and delete ledgers of one cluster.

async with quire.ledgers("zk://…/ledgers") as ledgers:
    async with ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
        entry_id = await ledger.append(b"entry")
    async with ledgers.open(ledger.id) as ledger:
        async for entry in ledger.read(0, ledger.last_add_confirmed): ...
"""

import asyncio
import hmac
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from quire.errors import InvalidArgument, NoSuchLedger, QuireError, WrongPassword
from quire.ledger.pool import BookiePool, PoolSettings
from quire.ledger.reader import LedgerReader
from quire.ledger.recovery import recover
from quire.ledger.settings import LedgerSettings
from quire.ledger.tail import read_lac
from quire.ledger.writer import LedgerWriter
from quire.metadata import Cluster, StoredLedger, StoreSettings, open_cluster
from quire.protocol.placement import BookieView, Placement, RandomPlacement
from quire.runtime import Runtime, real_runtime
from quire.types import BookieId, DigestType, EntryId, Fragment, LedgerId, LedgerMetadata, Quorum
from quire.types import ledger_id as ledger_id_of

_DEFAULTS: Final = LedgerSettings()


class LedgerClient:
    """All ledgers of one cluster. Made by `open_ledgers`."""

    def __init__(
        self, runtime: Runtime, cluster: Cluster, pool: BookiePool, settings: LedgerSettings, placement: Placement
    ) -> None:
        self._runtime, self._cluster, self._placement = runtime, cluster, placement
        self.pool, self.settings = pool, settings
        self.ledgers_metadata = cluster.ledgers

    # --- Ledgers

    @asynccontextmanager
    async def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest: str | DigestType = "crc32c",
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
    ) -> AsyncIterator[LedgerWriter]:
        """A new ledger, and the only writer it will ever have. It is sealed when the block ends.

        Raises `NotEnoughBookies`, and `InvalidArgument` for quorums that do not fit together.
        """
        quorum = Quorum(ensemble, write_quorum, ack_quorum)
        if ack_quorum < 1:
            raise InvalidArgument("an ack quorum of 0 would acknowledge what nobody has")
        await self.pool.wait_listed()
        bookies = self._placement.new_ensemble(self._view(), quorum, self._runtime.rng, custom=custom or {})
        metadata = LedgerMetadata(
            quorum,
            (Fragment(EntryId(0), bookies),),
            digest=_digest_type(digest),
            password=password,
            ctime_ms=self._runtime.clock.wall_ms(),
            custom=custom or {},
        )
        stored = await self.ledgers_metadata.create(metadata)
        await self._connect(bookies)
        async with LedgerWriter(self, stored, password) as writer:
            yield writer

    @asynccontextmanager
    async def open(self, ledger_id: int, *, password: bytes = b"", recover: bool = True) -> AsyncIterator[LedgerReader]:
        """A ledger to be read. With `recover` its writer is shut out, and the ledger is sealed where it ends.

        Without, nothing is changed: the reader follows a writer as far as entries are confirmed. Raises
        `NoSuchLedger`, `WrongPassword`, `RecoveryFailed`.
        """
        yield await self._open(LedgerId(ledger_id), password, recover_it=recover)

    async def _open(self, ledger_id: LedgerId, password: bytes, *, recover_it: bool) -> LedgerReader:
        stored = await self.ledgers_metadata.read(ledger_id)
        known = stored.metadata.password
        if known is not None and not hmac.compare_digest(known, password):
            raise WrongPassword(f"the password of ledger {ledger_id} is another one", ledger_id=ledger_id)
        if recover_it:
            stored = await recover(self, stored, password)
        reader = LedgerReader(self, stored, password)
        if not reader.is_closed:
            reader.raise_lac(await read_lac(self, reader))
        return reader

    async def recover(self, ledger_id: int, *, password: bytes | None = None) -> StoredLedger:
        """Seal a ledger. Without a password, that of the metadata is used, as operators do."""
        stored = await self.ledgers_metadata.read(LedgerId(ledger_id))
        known = stored.metadata.password or b""
        return await recover(self, stored, known if password is None else password)

    async def delete(self, ledger_id: int) -> None:
        """Remove a ledger: its metadata now, its entries when the bookies collect garbage. Fine if it is gone."""
        try:
            await self.ledgers_metadata.remove(LedgerId(ledger_id))
        except NoSuchLedger:
            pass

    def scan(self) -> AsyncIterator[LedgerId]:
        """Every ledger id."""
        return self.ledgers_metadata.scan()

    @staticmethod
    def id_of(number: int) -> LedgerId:
        """Raises `InvalidArgument` for what cannot be one."""
        return ledger_id_of(number)

    # --- For the parts

    async def _connect(self, bookies: Sequence[BookieId]) -> None:
        """Be connected before the first append. Who cannot be reached is replaced when it is needed."""
        attempts = [self.pool.connect(bookie, 2, timeout_s=self.settings.read_timeout_s) for bookie in set(bookies)]
        for bookie, done in zip(set(bookies), await asyncio.gather(*attempts, return_exceptions=True), strict=True):
            if isinstance(done, QuireError):
                self.on_bookie_error(bookie, done)
            elif isinstance(done, BaseException):
                raise done

    def replacement(
        self, metadata: LedgerMetadata, ensemble: tuple[BookieId, ...], position: int, exclude: frozenset[BookieId]
    ) -> BookieId:
        """Who takes a place in an ensemble. Raises `NotEnoughBookies`."""
        return self._placement.replace(
            self._view(), metadata.quorum, ensemble, position, self._runtime.rng, exclude=exclude
        )

    def _view(self) -> BookieView:
        return BookieView(writable=self.pool.writable, quarantined=self.pool.health.quarantined(self._now))

    def read_order(self, bookies: Sequence[BookieId]) -> Sequence[BookieId]:
        return self.pool.health.read_order(bookies, self._now)

    def on_bookie_error(self, bookie: BookieId, error: QuireError) -> None:
        self.pool.health.on_error(bookie, error, self._now)

    @property
    def _now(self) -> float:
        return self._runtime.clock.monotonic()


@asynccontextmanager
async def open_ledgers(
    uri: str,
    *,
    settings: LedgerSettings = _DEFAULTS,
    placement: Placement | None = None,
    pool_settings: PoolSettings | None = None,
    store_settings: StoreSettings | None = None,
    tls: ssl.SSLContext | None = None,
    runtime: Runtime | None = None,
) -> AsyncIterator[LedgerClient]:
    """The ledgers of the cluster whose metadata is at `uri`."""
    runtime = runtime or real_runtime()
    async with (
        open_cluster(uri, settings=store_settings, runtime=runtime) as cluster,
        BookiePool(runtime, cluster.bookies, pool_settings or PoolSettings(), tls=tls) as pool,
    ):
        yield LedgerClient(runtime, cluster, pool, settings, placement or RandomPlacement())


def _digest_type(digest: str | DigestType) -> DigestType:
    if isinstance(digest, DigestType):
        return digest
    try:
        return DigestType[digest.upper()]
    except KeyError:
        raise InvalidArgument(
            f"there is no digest {digest!r}",
            hint=f"Choose one of {', '.join(each.name.lower() for each in DigestType)}.",
        ) from None
