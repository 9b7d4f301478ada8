"""The ledger client: create, open, recover and delete ledgers of one cluster.

    async with quire.ledgers("zk://…/ledgers") as ledgers:
        async with ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
            entry_id = await ledger.append(b"entry")
        async with ledgers.open(ledger.id) as ledger:
            async for entry in ledger.read(0, ledger.last_add_confirmed): ...

Invariants:
  EveryCallEnds    no call waits longer than `call_timeout_s`, and the error then says what may have happened.
  ReachableFirst   a new ledger gets bookies that are connected, as far as there are enough.
"""

import asyncio
import hmac
import ssl
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from quire.codec.wire.v3_messages import DEFERRED_SYNC
from quire.errors import (
    BookieUnavailable,
    InvalidArgument,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    QuireError,
    RecoveryFailed,
    WrongPassword,
)
from quire.ledger.bookies.placing import PlacementSettings, PolicyName, open_placing
from quire.ledger.bookies.pool import BookiePool, PoolSettings, Version
from quire.ledger.context import LedgerContext
from quire.ledger.creation import checked_quorum, digest_type, reaches_acks, uncreated_error, unreached_error
from quire.ledger.deadlines import Deadline
from quire.ledger.metrics import LedgerMetrics
from quire.ledger.reading.reader import LedgerReader
from quire.ledger.reading.tailing import read_lac
from quire.ledger.repair.recovery import recover
from quire.ledger.settings import LedgerSettings
from quire.ledger.statistics import LedgerStatistics, statistics_of
from quire.ledger.writing.advanced import AdvancedWriter
from quire.ledger.writing.writer import LedgerWriter
from quire.metadata import MetadataStore, StoredLedger, StoreSettings, open_cluster
from quire.protocol.placement import Placement
from quire.runtime import Runtime, real_runtime
from quire.runtime.opening import Opened, opens
from quire.telemetry.events import logger
from quire.types import BookieId, DigestType, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState, Quorum
from quire.types import ledger_id as ledger_id_of

_log = logger("ledger")
_DEFAULTS: Final = LedgerSettings()


class LedgerClient(LedgerContext, Opened):
    """All ledgers of one cluster. Made by `open_ledgers`."""

    # --- Creating

    @opens("the writer of a ledger")
    async def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest: str | DigestType = "crc32c",
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
    ) -> AsyncIterator[LedgerWriter]:
        """A new ledger, and the only writer it will ever have. It is sealed when the block ends.

        With `ledger_id` it gets that id. With `deferred_sync` bookies acknowledge before their disks have the entry:
        call `force` before relying on it. Raises `NotEnoughBookies`, `LedgerExists` for an id that is taken,
        `InvalidArgument` for quorums that do not fit together, and what the metadata store raises.
        """
        flags = DEFERRED_SYNC if deferred_sync else 0
        quorum = checked_quorum(ensemble, write_quorum, ack_quorum)
        stored = await self._create(quorum, digest_type(digest), password, custom or {}, ledger_id, flags)
        async with LedgerWriter(self, stored, password, write_flags=flags) as writer:
            with self.metrics.writing(lambda: writer.statistics().in_flight_entries):
                yield writer

    @opens("the writer of a ledger")
    async def create_advanced(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest: str | DigestType = "crc32c",
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
    ) -> AsyncIterator[AdvancedWriter]:
        """As `create`, for a program that chooses the ids of its entries, too."""
        flags = DEFERRED_SYNC if deferred_sync else 0
        quorum = checked_quorum(ensemble, write_quorum, ack_quorum)
        stored = await self._create(quorum, digest_type(digest), password, custom or {}, ledger_id, flags)
        async with AdvancedWriter(self, stored, password, write_flags=flags) as writer:
            with self.metrics.writing(lambda: writer.statistics().in_flight_entries):
                yield writer

    async def _create(
        self,
        quorum: Quorum,
        digest: DigestType,
        password: bytes,
        custom: Mapping[str, bytes],
        ledger_id: int | None,
        write_flags: int,
    ) -> StoredLedger:
        """Choose bookies and store the new ledger. A lost answer is found out by the metadata layer."""
        with_id = None if ledger_id is None else ledger_id_of(ledger_id)
        if write_flags and self.settings.delay_ensemble_change:
            raise InvalidArgument("with deferred sync no bookie is ever replaced, so that cannot be delayed either")
        deadline = Deadline(self.settings.call_timeout_s)
        with self.metrics.timed(self.metrics.creates):
            async with deadline.or_raise(lambda: self._unlisted_error(deadline)):
                await self.pool.wait_listed()
            failed: dict[BookieId, QuireError] = {}
            async with deadline.or_raise(lambda: unreached_error(quorum, failed)):
                bookies = await self._reachable_ensemble(quorum, custom, 3 if write_flags else 2, failed)
            metadata = LedgerMetadata(
                Quorum(len(bookies), quorum.write, quorum.ack),
                (Fragment(EntryId(0), bookies),),
                digest=digest,
                password=password,
                ctime_ms=self.runtime.clock.wall_ms(),
                custom=custom,
            )
            async with deadline.or_raise(lambda: uncreated_error(with_id, deadline)):
                stored = await self.ledgers_metadata.create(metadata, with_id=with_id)
        if quorum.ack == 1 < len(self.pool.writable):
            # One lost disk loses acknowledged entries, and there would have been others.
            _log.warning("ledger.single_ack", ledger_id=stored.ledger_id)
        return stored

    async def _reachable_ensemble(
        self, quorum: Quorum, custom: Mapping[str, bytes], version: Version, failed: dict[BookieId, QuireError]
    ) -> tuple[BookieId, ...]:
        """Bookies that are connected; if there are too few, the first choice, as long as entries reach ack quorums, and
        bookies can be replaced. With deferred sync, which needs version 3, they cannot.

        A bookie may be listed and yet out of our reach, for its own reasons or for ours, such as a wrong certificate.
        """
        first = found = await self._placing.new_ensemble(quorum, custom)
        while errors := await self._connect(found, version):
            failed |= errors
            try:
                found = await self._placing.new_ensemble(quorum, custom, exclude=frozenset(failed))
            except NotEnoughBookies as error:
                if version == 2 and reaches_acks(quorum, first, failed):
                    return first  # Who is missing is replaced when it is needed, if somebody has come by then.
                raise unreached_error(quorum, failed) from error
        return found

    # --- Opening

    @opens("the reader of a ledger")
    async def open(
        self, ledger_id: int, *, password: bytes = b"", recover: bool = True, keep_metadata: bool = False
    ) -> AsyncIterator[LedgerReader]:
        """A ledger to be read. With `recover` its writer is shut out, and the ledger is sealed where it ends.

        Without, nothing is changed: the reader follows a writer as far as entries are confirmed. The digest is the one
        that the metadata names. With `keep_metadata` a reader of a closed ledger learns of entries that are moved to
        other bookies: for blocks that run for days. Raises `NoSuchLedger`, `WrongPassword`, `RecoveryFailed`,
        `BookieUnavailable`.
        """
        with self.metrics.timed(self.metrics.opens):
            opened = await self._open(ledger_id_of(ledger_id), password, recover, keep_metadata)
        async with opened as reader:
            yield reader

    async def _open(self, ledger_id: LedgerId, password: bytes, recover_it: bool, keep_metadata: bool) -> LedgerReader:
        deadline = Deadline(self.settings.call_timeout_s)
        stored = await self._read_metadata(ledger_id, deadline)
        known = stored.metadata.password
        if known is not None and not hmac.compare_digest(known, password):
            raise WrongPassword(f"the password of ledger {ledger_id} is another one", ledger_id=ledger_id)
        if recover_it:
            stored = await self._recover(stored, password, deadline)
        reader = LedgerReader(self, stored, password, keep_metadata=keep_metadata)
        if not reader.is_closed:
            async with deadline.or_raise(lambda: _unanswered_lac_error(ledger_id, deadline)):
                reader.raise_lac(await read_lac(self, reader))
        return reader

    async def recover(self, ledger_id: int, *, password: bytes | None = None) -> StoredLedger:
        """Seal a ledger. Without a password, that of the metadata is used, as operators do.

        Raises `NoSuchLedger`, `WrongPassword`, and `RecoveryFailed`, after which anybody may try again.
        """
        deadline = Deadline(self.settings.call_timeout_s)
        stored = await self._read_metadata(ledger_id_of(ledger_id), deadline)
        known = stored.metadata.password or b""
        return await self._recover(stored, known if password is None else password, deadline)

    async def _recover(self, stored: StoredLedger, password: bytes, deadline: Deadline) -> StoredLedger:
        def late() -> QuireError:
            return RecoveryFailed(
                f"the recovery of ledger {stored.ledger_id} was not done within {deadline.timeout_s:g} s",
                ledger_id=stored.ledger_id,
            )

        if stored.metadata.state is LedgerState.CLOSED:
            return stored
        with self.metrics.timed(self.metrics.recoveries):
            async with deadline.or_raise(late):
                return await recover(self, stored, password)

    async def delete(self, ledger_id: int) -> None:
        """Remove a ledger: its metadata now, its entries when the bookies collect garbage. Fine if it is gone."""
        deadline, number = Deadline(self.settings.call_timeout_s), ledger_id_of(ledger_id)

        def late() -> QuireError:
            return MetadataOutcomeUnknown(
                f"whether ledger {number} is deleted is not known: no answer came within {deadline.timeout_s:g} s",
                hint="Delete it again: that does no harm.",
                ledger_id=number,
            )

        with self.metrics.timed(self.metrics.deletes):
            async with deadline.or_raise(late):
                try:
                    await self.ledgers_metadata.remove(number)
                except NoSuchLedger:
                    pass

    def scan(self) -> AsyncIterator[LedgerId]:
        """Every ledger id."""
        return self.ledgers_metadata.scan()

    def statistics(self) -> LedgerStatistics:
        """What this client did, and how it is. `metrics.registry` has the same for Prometheus."""
        return statistics_of(self.metrics, self.pool)

    @staticmethod
    def id_of(number: int) -> LedgerId:
        """Raises `InvalidArgument` for what cannot be one."""
        return ledger_id_of(number)

    # --- Its end

    async def close(self) -> None:
        """Close the client, after all that was opened through it without a block. Fine if it is closed."""
        await self._close_opening()

    # --- For the parts

    async def _read_metadata(self, ledger_id: LedgerId, deadline: Deadline) -> StoredLedger:
        def late() -> QuireError:
            return MetadataUnavailable(
                f"the metadata of ledger {ledger_id} could not be read within {deadline.timeout_s:g} s",
                ledger_id=ledger_id,
            )

        async with deadline.or_raise(late):
            return await self.ledgers_metadata.read(ledger_id)

    async def _connect(self, bookies: Collection[BookieId], version: Version) -> dict[BookieId, QuireError]:
        """Be connected before the first append. Returns who cannot be reached, and why."""
        order = sorted(set(bookies))
        attempts = [self.pool.connect(bookie, version, timeout_s=self.settings.read_timeout_s) for bookie in order]
        failed: dict[BookieId, QuireError] = {}
        for bookie, done in zip(order, await asyncio.gather(*attempts, return_exceptions=True), strict=True):
            if isinstance(done, QuireError):
                failed[bookie] = done
            elif isinstance(done, BaseException):
                raise done
        return failed

    def _unlisted_error(self, deadline: Deadline) -> QuireError:
        why = f": {self.pool.listing_problem}" if self.pool.listing_problem is not None else ""
        return MetadataUnavailable(
            f"no ledger was created: which bookies there are was not known within {deadline.timeout_s:g} s{why}"
        )


@asynccontextmanager
async def open_ledgers(
    uri: str,
    *,
    settings: LedgerSettings = _DEFAULTS,
    placement: PolicyName | Placement | PlacementSettings = "rack-aware",
    pool_settings: PoolSettings | None = None,
    store_settings: StoreSettings | None = None,
    tls: ssl.SSLContext | None = None,
    runtime: Runtime | None = None,
    store: MetadataStore | None = None,
) -> AsyncIterator[LedgerClient]:
    """The ledgers of the cluster whose metadata is at `uri`. With `tls` all connections to bookies are encrypted.

    `store` is for who has that metadata open already, and closes it: `store_settings` mean nothing then.
    """
    runtime = runtime or real_runtime()
    placed = placement if isinstance(placement, PlacementSettings) else PlacementSettings(placement)
    metrics = LedgerMetrics(runtime.clock.monotonic)
    async with (
        open_cluster(uri, settings=store_settings, runtime=runtime, store=store) as cluster,
        BookiePool(runtime, cluster.bookies, _fitting(pool_settings or PoolSettings(), settings), tls=tls) as pool,
        open_placing(runtime, cluster, pool, placed, metrics) as placing,
    ):
        metrics.watch_pool(pool)
        yield LedgerClient(runtime, cluster, pool, placing, metrics, settings)


def _fitting(pool: PoolSettings, ledger: LedgerSettings) -> PoolSettings:
    """Whoever may write large entries may read them."""
    frame_bytes_max = max(pool.channel.frame_bytes_max, ledger.frame_bytes_max)
    return replace(pool, channel=replace(pool.channel, frame_bytes_max=frame_bytes_max))


def _unanswered_lac_error(ledger_id: LedgerId, deadline: Deadline) -> QuireError:
    return BookieUnavailable(
        f"how far ledger {ledger_id} is confirmed could not be told within {deadline.timeout_s:g} s",
        ledger_id=ledger_id,
    )
