"""Quire: a distributed log for Python, byte-compatible with Apache BookKeeper and DistributedLog.

    async with quire.connect(uri) as client: ...     # streams
    async with quire.ledgers(uri) as ledgers: ...    # the replicated ledgers below them
    with quire.sync.connect(uri) as client: ...      # the same for blocking code

These names are what Quire promises to its users; `quire.errors` has all that it raises.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire import errors, sync
    from quire.client import Client, connect, ledgers
    from quire.codec.stream.records import LogRecord
    from quire.ledger.client import LedgerClient
    from quire.ledger.reading.reader import LedgerEntry, LedgerReader
    from quire.ledger.settings import LedgerSettings
    from quire.ledger.writing.writer import LedgerWriter
    from quire.stream.client_api import StreamWriter
    from quire.stream.info import StreamInfo
    from quire.stream.reader import StreamReader
    from quire.stream.settings import StreamSettings
    from quire.stream.start import Time as time  # noqa: N813 - it reads as a function: quire.time(moment)
    from quire.stream.start import Txid as txid  # noqa: N813
    from quire.types import DLSN

__version__ = "0.1.0.dev0"
__all__ = [
    "DLSN",
    "Client",
    "LedgerClient",
    "LedgerEntry",
    "LedgerReader",
    "LedgerSettings",
    "LedgerWriter",
    "LogRecord",
    "StreamInfo",
    "StreamReader",
    "StreamSettings",
    "StreamWriter",
    "__version__",
    "connect",
    "errors",
    "ledgers",
    "sync",
    "time",
    "txid",
]

# Where each name is, as `module` or `module:name`. They are imported when they are used: whoever needs one does not
# wait for the others.
_HOMES = {
    "DLSN": "quire.types:DLSN",
    "Client": "quire.client:Client",
    "LedgerClient": "quire.ledger.client:LedgerClient",
    "LedgerEntry": "quire.ledger.reading.reader:LedgerEntry",
    "LedgerReader": "quire.ledger.reading.reader:LedgerReader",
    "LedgerSettings": "quire.ledger.settings:LedgerSettings",
    "LedgerWriter": "quire.ledger.writing.writer:LedgerWriter",
    "LogRecord": "quire.codec.stream.records:LogRecord",
    "StreamInfo": "quire.stream.info:StreamInfo",
    "StreamReader": "quire.stream.reader:StreamReader",
    "StreamSettings": "quire.stream.settings:StreamSettings",
    "StreamWriter": "quire.stream.client_api:StreamWriter",
    "connect": "quire.client:connect",
    "errors": "quire.errors",
    "ledgers": "quire.client:ledgers",
    "sync": "quire.sync",
    "time": "quire.stream.start:Time",
    "txid": "quire.stream.start:Txid",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    module, _, inside = home.partition(":")
    found: object = import_module(module)
    if inside:
        found = getattr(found, inside)
    globals()[name] = found  # The next use finds it without us.
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
