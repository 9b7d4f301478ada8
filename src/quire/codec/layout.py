"""The LAYOUT node: which ledger manager laid out a cluster's ledgers, and so where a ledger id is found.

    format version LF manager ":" manager version           no LF at the end

Format version 2 names the manager by its Java class, format version 1 by a short type name. A cluster may also name a
class under a prefix, where a Java program was built with its libraries renamed.
"""

from typing import Final

from quire.codec.damage import INT32_MAX, check_text, decimal, reading, shown, utf8
from quire.errors import DamagedMetadata, InvalidArgument
from quire.values import dataclass

FLAT: Final = "flat"
HIERARCHICAL: Final = "hierarchical"
LONG_HIERARCHICAL: Final = "longhierarchical"
ETCD: Final = "etcd"

FACTORY_CLASSES: Final = {
    FLAT: "org.apache.bookkeeper.meta.FlatLedgerManagerFactory",
    HIERARCHICAL: "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory",
    LONG_HIERARCHICAL: "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory",
    ETCD: "org.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory",
}
MANAGER_VERSIONS: Final = {FLAT: 1, HIERARCHICAL: 1, LONG_HIERARCHICAL: 1, ETCD: 0}
SHADED_PREFIX: Final = "dlshade."

_NAMES: Final = {
    **{factory: name for name, factory in FACTORY_CLASSES.items()},
    FLAT: FLAT,  # These two are the only type names that format version 1 knows.
    HIERARCHICAL: HIERARCHICAL,
}
_WHAT: Final = "ledger layout"


@dataclass(frozen=True, slots=True)
class LedgerLayout:
    """What LAYOUT says. `manager` is a Java class name, or a type name in format version 1."""

    format_version: int
    manager: str
    manager_version: int

    def __post_init__(self) -> None:
        if self.format_version not in (1, 2):
            raise InvalidArgument(f"layout format version {self.format_version} does not exist")
        if not self.manager or not set(self.manager).isdisjoint(":\n"):
            raise InvalidArgument(f"{shown(self.manager)} cannot name a ledger manager")
        check_text(self.manager)
        if not -INT32_MAX - 1 <= self.manager_version <= INT32_MAX:
            raise InvalidArgument(f"ledger manager version {self.manager_version} does not fit into 32 bits")


def layout_name(manager: str) -> str | None:
    """The layout that a factory class, or a type name of format version 1, stands for; None if we do not know it."""
    return _NAMES.get(manager.removeprefix(SHADED_PREFIX))


def layout_for(name: str) -> LedgerLayout:
    """What a new cluster of this layout stores: `flat`, `hierarchical`, `longhierarchical` or `etcd`."""
    if name not in FACTORY_CLASSES:
        raise InvalidArgument(f"{name!r} is not a ledger layout", hint=f"Known: {', '.join(FACTORY_CLASSES)}.")
    return LedgerLayout(2, FACTORY_CLASSES[name], MANAGER_VERSIONS[name])


def encode_layout(layout: LedgerLayout) -> bytes:
    return f"{layout.format_version}\n{layout.manager}:{layout.manager_version}".encode()


def decode_layout(data: bytes) -> LedgerLayout:
    """Raises `DamagedMetadata`. Lines after the second are ignored, as Apache's readers do."""
    first, *rest = utf8(data, _WHAT).split("\n")
    format_version = decimal(first, f"{_WHAT}: the format version on line 1", low=1, high=2)
    parts = rest[0].split(":") if rest else []
    if len(parts) != 2:
        raise DamagedMetadata(f"{_WHAT}: line 2 should be 'manager:version', but is {shown(rest[0] if rest else '')}")
    manager_version = decimal(parts[1], f"{_WHAT}: the manager version on line 2", low=-INT32_MAX - 1, high=INT32_MAX)
    with reading(_WHAT):
        return LedgerLayout(format_version, parts[0], manager_version)
