"""How the metadata tree lies in etcd's flat keys, and how one level of it is listed. Sans-IO.

A node's key is its path, as Apache BookKeeper's own etcd driver has it: what either side writes, the other sees. A node
exists if and only if its key does; the root always exists and has no key. Keys of ours that are no nodes start with
`quire/`, without the slash, so they lie outside every tree.

`/` is 0x2f and `0` is 0x30, hence all that is below `/a` lies in [`/a/`, `/a0`). But `-` and `.` sort before `/`: the
sibling `a-b` stands between `a` and the subtree of `a`. A listing therefore looks at every key it is given and may only
jump from inside a subtree, to the subtree's end.
"""

from collections.abc import Sequence
from typing import Final

from quire.errors import invariant
from quire.metadata.driver import SessionId, Stat, Version
from quire.metadata.drivers.etcd_pb import etcd_pb2 as pb
from quire.metadata.paths import ROOT

ROOT_STAT: Final = Stat(Version(0), writes=1, created_ms=None, owner=None)

PAGE_KEYS_MAX: Final = 1000
PAGE_KEYS_MIN: Final = 100  # Below this a page costs what a round trip costs, and smaller ones gain nothing.
_SPARSE_NAMES: Final = 2  # A page that meets no more names than this lies in large subtrees.


def key_of(path: str) -> bytes:
    """The key that holds the node at `path`."""
    return path.encode()


def range_below(path: str) -> tuple[bytes, bytes]:
    """The half-open range of all keys below `path`, at any depth."""
    stem = b"" if path == ROOT else path.encode()
    return stem + b"/", stem + b"0"


def session_key(lease: int) -> bytes:
    """The key whose existence proves that a session is alive: it hangs on the session's lease."""
    return f"quire/session/{lease:x}".encode()


def counter_key(parent: str) -> bytes:
    """The key that holds the next number for sequential nodes below `parent`."""
    return f"quire/sequence{parent}".encode()


def stat_of(stored: pb.KeyValue) -> Stat:
    owner = SessionId(stored.lease) if stored.lease else None
    return Stat(Version(stored.mod_revision), writes=stored.version, created_ms=None, owner=owner)


def is_direct_child(path: str, key: bytes) -> bool:
    """Whether `key` is one level below `path`, neither deeper nor elsewhere."""
    prefix, _ = range_below(path)
    return len(key) > len(prefix) and key.startswith(prefix) and b"/" not in key[len(prefix) :]


class ChildScan:
    """Collects the direct children of a node from pages of keys, and says where the next page begins.

    Flat directories are read in large pages. Where a page turns out to lie in one or two large subtrees, the next is
    small and begins behind the subtree: a directory's cost grows with its children, not with all that is below them.

    Keys that no path can name (an empty name, not UTF-8) are no nodes and are left out.
    """

    def __init__(self, path: str, *, page_keys_max: int = PAGE_KEYS_MAX, page_keys_min: int = PAGE_KEYS_MIN) -> None:
        self._prefix, self.end = range_below(path)
        self._page_keys_max, self._page_keys_min = page_keys_max, page_keys_min
        self.start = self._prefix
        self.limit = page_keys_max
        self.finished = False
        self.names: list[str] = []  # Ascending: the order of UTF-8 bytes is that of code points.

    def on_page(self, keys: Sequence[bytes], *, more: bool) -> None:
        """Take the first `limit` keys of [`start`, `end`), ascending; `more` if the limit cut them short."""
        invariant(not self.finished, "a page after the last one", prefix=self._prefix)
        invariant(bool(keys) or not more, "an empty page that promises more", prefix=self._prefix)
        met = 0
        name, deeper, previous = b"", b"", None
        for key in keys:
            name, deeper, _ = key[len(self._prefix) :].partition(b"/")
            met += name != previous
            previous = name
            if name and not deeper:
                self._add(name)
        if not more:
            self.finished = True
            return
        self.start = self._prefix + name + b"0" if deeper else keys[-1] + b"\x00"
        if met <= _SPARSE_NAMES:
            self.limit = max(self.limit // 4, self._page_keys_min)
        else:
            self.limit = min(self.limit * 4, self._page_keys_max)

    def _add(self, name: bytes) -> None:
        try:
            self.names.append(name.decode())
        except UnicodeDecodeError:
            return
