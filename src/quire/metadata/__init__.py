"""Metadata: one small versioned tree, with drivers chosen by URI, and typed views over any of them."""

from quire.metadata.api import MetadataStore, SessionWatch, Watch
from quire.metadata.bookies import BookieListing, Bookies, Registration, StoredCookie
from quire.metadata.cluster import Cluster, attach_cluster, init_cluster, open_cluster
from quire.metadata.driver import (
    ANY_VERSION,
    Check,
    Children,
    Create,
    Delete,
    Node,
    SessionEvent,
    SessionId,
    Set,
    Stat,
    Version,
    Written,
)
from quire.metadata.ledgers import Ledgers, StoredLedger
from quire.metadata.locks import HeldLock, hold_lock, lock_owners
from quire.metadata.registry import open_store
from quire.metadata.settings import StoreSettings
from quire.metadata.uri import MetadataUri, parse_uri

__all__ = [
    "ANY_VERSION",
    "BookieListing",
    "Bookies",
    "Check",
    "Children",
    "Cluster",
    "Create",
    "Delete",
    "HeldLock",
    "Ledgers",
    "MetadataStore",
    "MetadataUri",
    "Node",
    "Registration",
    "SessionEvent",
    "SessionId",
    "SessionWatch",
    "Set",
    "Stat",
    "StoreSettings",
    "StoredCookie",
    "StoredLedger",
    "Version",
    "Watch",
    "Written",
    "attach_cluster",
    "hold_lock",
    "init_cluster",
    "lock_owners",
    "open_cluster",
    "open_store",
    "parse_uri",
]
