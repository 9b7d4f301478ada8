"""Ledger ids, and the paths that the ledger managers keep them under. All paths are relative to the ledgers root.

    flat                 L + 10 digits                      L0000012345
    hierarchical         2-4-4 digits below 2147483647      00/0001/L2345
                         3-4-4-4-4 digits from there on     000/0000/0021/4748/L3647
    longhierarchical     3-4-4-4-4 digits always            000/0000/0000/0001/L2345
    etcd                 the id as the low half of a UUID   ledgers/00000000-0000-0000-0000-000000003039

Invariant: an id has one path in a layout, and only that path is read back as the id. A ledger at any other path is
invisible to Java bookies, which then delete its entries as garbage.
"""

import re
from typing import Final

from quire.codec.damage import INT32_MAX, INT64_MAX, decimal, shown
from quire.codec.layout import ETCD, FLAT, HIERARCHICAL, LONG_HIERARCHICAL
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import LEDGER_ID_MAX, LedgerId, ledger_id

SHORT_ID_END: Final = INT32_MAX  # Ids below fit the short tree and the short generator.
ETCD_LEDGERS: Final = "ledgers"

SHORT_TREE: Final = (2, 4, 4)  # Digits on each level; the last one is the ledger's own name, after an `L`.
LONG_TREE: Final = (3, 4, 4, 4, 4)
TREES: Final = {HIERARCHICAL: (SHORT_TREE, LONG_TREE), LONG_HIERARCHICAL: (LONG_TREE,)}

ID_PREFIX: Final = "ID-"
HOB_PREFIX: Final = "HOB-"  # High order bits: the upper half of ids that outgrew 31 bits.
HOB_MAX: Final = INT32_MAX
ETCD_BUCKETS: Final = 128

_FLAT_NAME = re.compile("L([0-9]{10,19})", re.ASCII)
_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)
_HOB_NAME = re.compile(HOB_PREFIX + "([0-9]{10})", re.ASCII)
_ETCD_BUCKET_BITS: Final = 56


# --- Id to path and back


def ledger_path(layout: str, ledger: LedgerId) -> str:
    """Where `layout` keeps the ledger. Raises `InvalidArgument` for ids and layouts that do not exist."""
    ledger_id(ledger)
    if layout == FLAT:
        return f"L{ledger:010d}"
    if layout == HIERARCHICAL:
        return _tree_path(SHORT_TREE if ledger < SHORT_ID_END else LONG_TREE, ledger)
    if layout == LONG_HIERARCHICAL:
        return _tree_path(LONG_TREE, ledger)
    if layout == ETCD:
        digits = f"{ledger:016x}"
        return f"{ETCD_LEDGERS}/00000000-0000-0000-{digits[:4]}-{digits[4:]}"
    raise InvalidArgument(f"{layout!r} is not a ledger layout")


def ledger_id_at(layout: str, path: str) -> LedgerId:
    """The ledger whose `ledger_path` is `path`. Raises `DamagedMetadata` if no ledger has it."""
    number = _number_at(layout, path)
    if number is None or number > LEDGER_ID_MAX or ledger_path(layout, LedgerId(number)) != path:
        raise DamagedMetadata(f"{shown(path)} is not the path of a ledger in the {layout} layout", path=path)
    return LedgerId(number)


def is_tree_name(name: str, digits: int, *, leaf: bool) -> bool:
    """Whether `name` can stand on a level of `digits` digits in a tree: digits only, after an `L` on the last level."""
    number = name.removeprefix("L") if leaf else name
    return len(name) == digits + leaf and len(number) == digits and number.isascii() and number.isdigit()


def _tree_path(tree: tuple[int, ...], ledger: LedgerId) -> str:
    digits = f"{ledger:0{sum(tree)}d}"
    groups, start = [], 0
    for width in tree:
        groups.append(digits[start : start + width])
        start += width
    return "/".join([*groups[:-1], f"L{groups[-1]}"])


def _number_at(layout: str, path: str) -> int | None:
    """What the digits of `path` say, if it has the form of the layout; the caller checks that it is the right path."""
    if layout == FLAT:
        match = _FLAT_NAME.fullmatch(path)
        return int(match[1]) if match else None
    if layout == ETCD:
        uuid = path.removeprefix(f"{ETCD_LEDGERS}/")
        return int(uuid.replace("-", ""), 16) if _UUID.fullmatch(uuid) else None
    if layout not in TREES:
        raise InvalidArgument(f"{layout!r} is not a ledger layout")
    names = path.split("/")
    for tree in TREES[layout]:
        if len(names) == len(tree) and all(
            is_tree_name(name, digits, leaf=level == len(tree))
            for level, (name, digits) in enumerate(zip(names, tree, strict=True), start=1)
        ):
            return int("".join(names).replace("L", ""))
    return None


# --- Making ids


def short_id(path: str) -> int | None:
    """The number that the store gave the sequential node `…/ID-<number>`; None when the short ids are used up.

    ZooKeeper counts in 32 bits with a sign and starts over from below zero, so a negative number also means used up.
    Raises `DamagedMetadata` if `path` is no such node.
    """
    name = path.rpartition("/")[2]
    if not name.startswith(ID_PREFIX):
        raise DamagedMetadata(f"{shown(path)} is not a node that makes ledger ids", path=path)
    number = decimal(name.removeprefix(ID_PREFIX), f"the number in {shown(path)}")
    return number if 0 <= number < SHORT_ID_END else None


def hob_name(high: int) -> str:
    """The name of the node below which ids with these high order bits are made."""
    if not 0 <= high <= HOB_MAX:
        raise InvalidArgument(f"{high} cannot be the high half of a ledger id")
    return f"{HOB_PREFIX}{high:010d}"


def hob_number(name: str) -> int | None:
    """The high order bits that a node's name says; None for names of another form, which everybody ignores."""
    match = _HOB_NAME.fullmatch(name)
    return int(match[1]) if match and int(match[1]) <= HOB_MAX else None


def long_id(high: int, low: int) -> LedgerId:
    """The id with these high order bits and this number from `short_id`."""
    if not 0 <= high <= HOB_MAX or not 0 <= low < SHORT_ID_END:
        raise InvalidArgument(f"{high} and {low} cannot be the halves of a ledger id")
    return LedgerId(high << 32 | low)


def etcd_id(bucket: int, count: int) -> LedgerId | None:
    """The id that a bucket's `count`-th write makes, counted from 1; None when the bucket is full."""
    if not 0 <= bucket < ETCD_BUCKETS or not 1 <= count <= INT64_MAX:
        raise InvalidArgument(f"bucket {bucket} and count {count} cannot make a ledger id")
    return LedgerId(bucket << _ETCD_BUCKET_BITS | count) if count < 1 << _ETCD_BUCKET_BITS else None
