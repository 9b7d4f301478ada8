"""The smallest cluster there is: one bookie as a process, metadata in a SQLite file, and a namespace on it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict

import quire
from quire.errors import QuireError
from quire.ledger.settings import LedgerSettings
from quire.metadata import StoreSettings
from quire.runtime import real_runtime
from quire.stream.binding import create_namespace
from quire.stream.settings import StreamSettings
from tests.support.servers.killable import BookieProcess
from tests.support.servers.sqlite_bookie import new_cluster
from tests.support.waiting import eventually

SETTINGS = StreamSettings(ensemble=1, write_quorum=1, ack_quorum=1, lock_timeout_s=1.0, call_timeout_s=30.0)
STORE = StoreSettings(session_timeout_s=5.0)
LEDGERS = LedgerSettings(call_timeout_s=30.0)


class Replicas(TypedDict):
    """How a ledger is replicated, as arguments."""

    ensemble: int
    write_quorum: int
    ack_quorum: int


ONE: Final[Replicas] = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}


@dataclass(frozen=True, slots=True)
class OneBookie:
    """Where it is."""

    streams: str
    ledgers: str
    folder: Path


@contextmanager
def one_bookie(folder: Path) -> Iterator[OneBookie]:
    """Return when the bookie takes entries."""
    streams = f"distributedlog+sqlite:{folder}/metadata.db/ns"

    async def set_up() -> str:
        uri = await new_cluster(real_runtime(), folder)
        await create_namespace(streams)
        return uri

    async def takes_entries() -> bool:
        assert not bookie.died_by_itself, bookie.log_end()
        async with quire.ledgers(ledgers, settings=LEDGERS) as client:
            try:
                async with client.create(**ONE) as ledger:
                    await ledger.append(b"")
            except QuireError:
                return False
        return True

    ledgers = asyncio.run(set_up())
    bookie = BookieProcess("b1", folder, ledgers, session_s=5.0)
    try:
        bookie.start()
        asyncio.run(eventually(takes_entries, within_s=60, what="the bookie takes entries"))
        yield OneBookie(streams, ledgers, folder)
    finally:
        bookie.kill()
