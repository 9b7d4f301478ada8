"""Decide what to do about a bookie that refuses its folders, and do it where nothing can be lost by it.

A cookie is a proof, so it is only ever restored from another copy of itself: from the metadata store into a folder that
holds data and lost its file, or from the folders into a store that lost its node. A folder that is empty proves
nothing. Then the way is another one: let the cluster copy what the bookie held, and begin anew.

Invariant: no folder gets a cookie that holds nothing, and no cookie is changed that another bookie, or another cluster,
could have made.
"""

import enum
from collections.abc import Mapping
from dataclasses import replace

from quire.bookie.identity import DIRTY, LOCK, NEW, READ_ONLY, RESERVE, VERSION, BookieFolders, hold_folders
from quire.codec.cookie import Cookie, decode_cookie, encode_cookie
from quire.errors import DamagedMetadata, WrongDisk
from quire.metadata import ANY_VERSION, Cluster
from quire.metadata.paths import join
from quire.runtime import Disk, Runtime, read_file, replace_file
from quire.types import BookieId
from quire.values import dataclass

_NO_DATA = frozenset({LOCK, VERSION, NEW, DIRTY, READ_ONLY, RESERVE, "lost+found"})


class Case(enum.StrEnum):
    """What is the matter."""

    MATCHES = "the folders and the metadata store agree"
    FIRST_START = "neither the folders nor the metadata store know this bookie: its first start makes the cookie"
    NOT_STORED = "the metadata store lost the cookie, and the folders have it"
    NOT_IN_FOLDER = "a folder lost its file VERSION, and its data is there"
    MOVED = "the folders are the bookie's own, and have other paths by now"
    EMPTY = "a folder is empty: it is a new disk, or another one is mounted"
    FOREIGN = "the folders belong to another bookie, or to another cluster"


_REPAIRED = {
    Case.NOT_STORED: "put the cookie of the folders into the metadata store",
    Case.NOT_IN_FOLDER: "write the file VERSION anew, as the metadata store has it",
    Case.MOVED: "write the new paths into the folders and into the metadata store",
}
_ADVICE = {
    Case.MATCHES: "Nothing is to be done: start the bookie.",
    Case.FIRST_START: "Nothing is to be done: start the bookie.",
    Case.EMPTY: "If the disk is lost, run `quire bookie decommission {id}`: it copies what the bookie held from the "
    "others and deletes the cookie. Then start the bookie empty, under the same id. If another disk belongs there, "
    "mount it.",
    Case.FOREIGN: "Start the bookie with its own id, folders and cluster. Nothing here is changed by a command.",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is the matter with a bookie's cookie, and what can be done."""

    bookie_id: BookieId
    case: Case
    details: tuple[str, ...]
    repair: str | None
    """What `repair` would do; None if it would do nothing."""

    advice: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All copies of the cookie. None where there is none, or where what is there cannot be read."""

    wanted: Cookie
    """What the bookie's folders and cluster would make."""

    stored: Cookie | None
    in_folders: Mapping[str, Cookie | None]
    empty: frozenset[str]
    """Folders that hold no data."""


def diagnose(evidence: Evidence) -> Diagnosis:
    """Which case it is. The first doubt decides: an empty folder, then whose the others are."""
    wanted, stored = evidence.wanted, evidence.stored
    in_folders = [cookie for cookie in evidence.in_folders.values() if cookie is not None]
    copies = [*in_folders, *([] if stored is None else [stored])]
    lacking = [folder for folder, cookie in evidence.in_folders.items() if cookie is None]
    details = [f"in {folder} there is no {VERSION} that can be read" for folder in lacking]
    if stored is None:
        details.append("in the metadata store there is no cookie that can be read")
    for where, cookie in (("the metadata store", stored), *evidence.in_folders.items()):
        if cookie is not None:
            details += [f"in {where}, {each}" for each in wanted.differences(cookie)]
    details += [f"{folder} holds no data" for folder in sorted(evidence.empty)]
    return _diagnosis(evidence, _case(evidence, copies, in_folders, lacking), tuple(details))


def _case(evidence: Evidence, copies: list[Cookie], in_folders: list[Cookie], lacking: list[str]) -> Case:
    wanted, stored = evidence.wanted, evidence.stored
    if any((each.bookie_id, each.instance_id) != (wanted.bookie_id, wanted.instance_id) for each in copies):
        return Case.FOREIGN
    if not copies and evidence.empty == set(evidence.in_folders):
        return Case.FIRST_START
    if not in_folders or evidence.empty & set(lacking):
        return Case.EMPTY if evidence.empty else Case.FOREIGN
    if all(not wanted.differences(each) for each in copies):
        if stored is None:
            return Case.EMPTY if evidence.empty == set(evidence.in_folders) else Case.NOT_STORED
        return Case.NOT_IN_FOLDER if lacking else Case.MATCHES
    moved = len({_paths(each) for each in copies}) == 1
    return Case.MOVED if moved and not lacking and stored is not None and not evidence.empty else Case.FOREIGN


def _paths(cookie: Cookie) -> tuple[object, ...]:
    return cookie.journal_dirs, cookie.ledger_dirs, cookie.index_dirs


def _diagnosis(evidence: Evidence, case: Case, details: tuple[str, ...]) -> Diagnosis:
    bookie = evidence.wanted.bookie_id
    advice = _ADVICE.get(case, "Run `quire bookie cookie repair` to do so, then start the bookie.")
    return Diagnosis(bookie, case, details, _REPAIRED.get(case), advice.replace("{id}", bookie))


# --- With disks and a store


async def examine(runtime: Runtime, folders: BookieFolders, cluster: Cluster, bookie: BookieId) -> Evidence:
    """Read all copies. Changes nothing."""
    disk, wanted = runtime.disk, folders.cookie(bookie, await cluster.instance_id())
    try:
        kept = await cluster.bookies.cookie(bookie)
        stored = None if kept is None else kept.cookie
    except DamagedMetadata:
        stored = None
    found = {folder: await _in_folder(disk, folder) for folder in folders.all}
    empty = {folder for folder in folders.all if not await _holds_data(disk, folder, folders)}
    return Evidence(wanted, stored, found, frozenset(empty))


async def repair(runtime: Runtime, folders: BookieFolders, cluster: Cluster, bookie: BookieId) -> Diagnosis:
    """Look once more, with everybody else kept out of the folders, and do what can be done.

    Raises `WrongDisk` if that is nothing, and `FolderInUse` while the bookie runs.
    """
    async with hold_folders(runtime, folders):
        evidence = await examine(runtime, folders, cluster, bookie)
        found = diagnose(evidence)
        if found.repair is None and found.case not in (Case.MATCHES, Case.FIRST_START):
            raise WrongDisk(f"{found.case}: {'; '.join(found.details)}", hint=found.advice, bookie_id=bookie)
        if found.repair is not None:
            cookie = evidence.wanted
            if evidence.stored is not None:
                cookie = replace(cookie, layout_version=evidence.stored.layout_version)
            for folder in folders.all:
                await replace_file(runtime.disk, f"{folder}/{VERSION}", encode_cookie(cookie))
            await _store(cluster, cookie)
    return found


async def _store(cluster: Cluster, cookie: Cookie) -> None:
    path = join(cluster.paths.cookies, cookie.bookie_id)
    if await cluster.store.exists(path) is None:
        await cluster.bookies.create_cookie(cookie)
    else:
        await cluster.store.set(path, encode_cookie(cookie), expected=ANY_VERSION)


async def _in_folder(disk: Disk, folder: str) -> Cookie | None:
    try:
        return decode_cookie(await read_file(disk, f"{folder}/{VERSION}"))
    except (FileNotFoundError, NotADirectoryError, DamagedMetadata):
        return None


async def _holds_data(disk: Disk, folder: str, folders: BookieFolders) -> bool:
    try:
        names = await disk.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return False
    paths = {name: f"{folder}/{name}" for name in names if name.removesuffix(".new") not in _NO_DATA}
    return any(path not in folders.all for path in paths.values())
