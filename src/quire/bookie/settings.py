"""What may be tuned about a bookie: how it uses its disks, and how it treats its clients."""

from quire.bookie.journal import JournalSettings
from quire.codec.wire.frames import FRAME_BYTES_MAX
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """What may be tuned about a bookie's storage."""

    cache_bytes_max: int = 32 << 20
    """How much may wait in the write cache. At half of it a checkpoint begins; beyond it new entries should wait."""

    read_cache_bytes_max: int = 32 << 20
    """How much is kept of what was read ahead."""

    ledgers_cached_max: int = 100_000
    """Ledgers whose state is kept in memory; others are looked up in the index when they are needed again."""

    log_bytes_max: int = 1 << 30
    """Size of an entry log. Larger ones are fewer; smaller ones give their space back sooner."""

    direct_logs: bool = True
    """Whether large writes to entry logs go past the kernel's memory, where the file system can do that. Off, they stay
    there while there is room, for readers that come soon: for slow disks in machines with much memory."""

    check_digests: bool = True
    """Whether an entry that fails its own CRC is refused when it arrives. Costs about a microsecond for 1 KiB."""

    journal: JournalSettings = JournalSettings()


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What may be tuned about the connections of a bookie."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    """The largest frame, its length included. Clients must not be set to more."""

    batch_bytes_max: int = FRAME_BYTES_MAX
    """The most that one batch read returns."""

    connections_max: int = 10_000
    """Beyond it new connections are closed at once: each takes a file descriptor."""

    half_frames_bytes_max: int = 256 << 20
    """What frames whose end has not arrived may take in all. Beyond it the oldest of them costs its connection."""

    unsent_bytes_max: int = 1 << 20
    """How much waits to be sent on one connection before its reads wait too."""

    long_polls_max: int = 10_000
    """How many long polls one connection may have under way."""

    slow_s: float = 1.0
    """Requests that take longer are logged, with the stage that took the time."""

    tls_timeout_s: float = 10.0
    """How long a client may take for the TLS handshake."""
