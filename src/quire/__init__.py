"""Quire: a distributed log for Python, byte-compatible with Apache BookKeeper and DistributedLog."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.ledger.client import open_ledgers as ledgers

__version__ = "0.1.0.dev0"
__all__ = ["__version__", "ledgers"]


def __getattr__(name: str) -> object:
    """The doors of the library, opened when they are used: whoever needs one does not wait for the others."""
    if name == "ledgers":
        from quire.ledger.client import open_ledgers

        return open_ledgers
    raise AttributeError(f"module 'quire' has no attribute {name!r}")
