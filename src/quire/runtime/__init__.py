"""The seams to the outside world: clock, disk, network and randomness, real here and simulated in `quire.testing`."""

from quire.runtime.clock import AsyncioClock, Clock
from quire.runtime.disk import Buffer, Disk, DiskUsage, File, FileLock, StrPath, read_file, replace_file
from quire.runtime.local_network import LocalNetwork
from quire.runtime.network import AsyncioNetwork, Network, Server
from quire.runtime.os_disk import OsDisk
from quire.runtime.rng import Rng, SystemRng
from quire.runtime.seams import Runtime, real_runtime

__all__ = [
    "AsyncioClock",
    "AsyncioNetwork",
    "Buffer",
    "Clock",
    "Disk",
    "DiskUsage",
    "File",
    "FileLock",
    "LocalNetwork",
    "Network",
    "OsDisk",
    "Rng",
    "Runtime",
    "Server",
    "StrPath",
    "SystemRng",
    "read_file",
    "real_runtime",
    "replace_file",
]
