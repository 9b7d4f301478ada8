"""The bookies of an embedded log: as any other, with settings for a process that is an application first."""

from ssl import SSLContext
from typing import Final

from quire.bookie.bookie import Bookie, BookieSettings
from quire.bookie.folder_token import folder_token
from quire.bookie.garbage import GarbageSettings
from quire.bookie.journal import JournalSettings
from quire.bookie.settings import StorageSettings
from quire.bookie.space import SpaceSettings
from quire.embedded.folder import DataFolder
from quire.metadata import Cluster
from quire.runtime import Runtime

_PORT: Final = 3181

# A fraction of what a bookie of its own would take.
_STORAGE: Final = StorageSettings(
    cache_bytes_max=16 << 20,
    read_cache_bytes_max=8 << 20,
    ledgers_cached_max=10_000,
    log_bytes_max=256 << 20,
    journal=JournalSettings(
        file_bytes_max=16 << 20, preallocate_bytes=1 << 20, group_bytes_max=4 << 20, queue_bytes_max=16 << 20
    ),
)
_SPACE: Final = SpaceSettings(free_bytes_min=64 << 20, reserve_bytes=0)
_GARBAGE: Final = GarbageSettings(interval_s=60.0)


def bookie_of(
    runtime: Runtime, cluster: Cluster, folder: DataFolder, number: int, *, listen: str | None, tls: SSLContext | None
) -> Bookie:
    """A bookie of the folder, not started yet. With `listen` it takes any port of that address."""
    bookie_id = folder.bookie_id(number)
    settings = BookieSettings(
        folder.bookie(number),
        host=listen or bookie_id,
        port=0 if listen else _PORT,
        bookie_id=bookie_id,
        folder_token=folder_token,
        storage=_STORAGE,
        space=_SPACE,
        garbage=_GARBAGE,
    )
    return Bookie(runtime, cluster, settings, tls=tls)
