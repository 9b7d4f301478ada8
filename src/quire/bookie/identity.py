"""Prove at start that the directories are this bookie's. A bookie on an empty disk would deny what it acknowledged.

The proof is the cookie: it is in the metadata store and, as the file VERSION, in every folder, and all must say the
same. A bookie gets one only at its first start, when the store has none for it and its folders hold nothing.

    async with hold_folders(runtime, folders):                       # nobody else works here
        identity = await prove_identity(runtime, folders, cluster.bookies, bookie_id=..., instance_id=...)
        ...                                                          # bring back the ledgers, register
        await mark_dirty(runtime.disk, folders)                      # then serve, then close the storage
        await mark_clean(runtime.disk, folders)

Invariants:
  NoCookieForLoss    no cookie is made for folders that hold data, nor for a bookie that has one in the store.
  FilesBeforeStore   VERSION files are durable before the store has the cookie: a crash between the two leaves what a
                     first start may continue from, and never a cookie without its folders.
  NewIsEmpty         only a folder with the file NEW may be empty behind a cookie that matches. It is gone before the
                     bookie first serves, so that a folder that was emptied all but VERSION is found out.

Two first starts of one id, on two machines, with the same paths, make the same cookie: the store decides for one, and
the other takes its files back. Only if that one loses power in the same instant do its files stay; then only its
registration keeps the two apart.

Errors of the disk are raised as they come.
"""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from quire.codec.cookie import LAYOUT_VERSION, Cookie, decode_cookie, encode_cookie
from quire.errors import (
    DamagedMetadata,
    FolderInUse,
    InvalidArgument,
    MetadataOutcomeUnknown,
    NodeExists,
    Outcome,
    QuireError,
    WrongDisk,
)
from quire.metadata import Bookies, StoredCookie
from quire.runtime import Disk, Runtime, StrPath, read_file, replace_file
from quire.types import BookieId
from quire.values import dataclass

LOCK: Final = "LOCK"
VERSION: Final = "VERSION"
NEW: Final = "NEW"
DIRTY: Final = "DIRTY"
READ_ONLY: Final = "READ_ONLY"
RESERVE: Final = "reserve"

# What may lie in a folder that holds no data yet: ours, and what a new file system of some kinds comes with.
_NO_DATA: Final = frozenset(
    {LOCK, VERSION, f"{VERSION}.new", NEW, READ_ONLY, f"{READ_ONLY}.new", RESERVE, f"{RESERVE}.new", "lost+found"}
)
_NAMES_SHOWN_MAX: Final = 5

_WRONG: Final = (
    "Mount the right disk, and start the bookie with the directories it had. If the disk is really lost, decommission "
    "the bookie: let the cluster copy its entries from the others and delete its cookie, then start it empty."
)
_UNKNOWN: Final = (
    "Start the bookie with the id it had, and on the cluster it belongs to. If it was decommissioned, and only then, "
    "empty its directories and start it as a new one."
)


@dataclass(frozen=True, slots=True)
class BookieFolders:
    """Where a bookie keeps its things: absolute paths. Without journals, one is made inside the data folder."""

    data: str
    journals: tuple[str, ...] = ()
    moves_with: str | None = None
    """A folder above all of them that may be moved as a whole: the cookie names them as seen from there."""

    def __post_init__(self) -> None:
        journals = self.journals or (f"{self.data}/journal",)
        # One spelling for each: the cookie compares paths as text.
        object.__setattr__(self, "data", os.path.normpath(self.data))
        object.__setattr__(self, "journals", tuple(os.path.normpath(journal) for journal in journals))
        if not all(map(os.path.isabs, self.all)) or len(set(self.all)) < len(self.all):
            raise InvalidArgument(
                f"a bookie cannot work in {', '.join(self.all)}",
                hint="Name absolute paths, each of them once: the data folder and the journal folders.",
            )

    @property
    def all(self) -> tuple[str, ...]:
        """Every folder, the data folder first."""
        return (self.data, *self.journals)

    def cookie(self, bookie_id: BookieId, instance_id: str | None) -> Cookie:
        """What the folders and the store have to agree on."""

        def named(path: str) -> str:
            return path if self.moves_with is None else os.path.relpath(path, self.moves_with)

        return Cookie(bookie_id, tuple(map(named, self.journals)), (named(self.data),), instance_id=instance_id)


@dataclass(frozen=True, slots=True)
class Identity:
    """What the folders and the metadata store agree on."""

    cookie: Cookie
    is_new: bool
    """Nothing has ever been served from these folders, so they may be empty. Otherwise they must not."""
    was_unclean: bool
    """The last life of this bookie did not end with `mark_clean`."""


# --- Nobody else --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def hold_folders(runtime: Runtime, folders: BookieFolders) -> AsyncIterator[None]:
    """Keep every other process out of the folders, which are created if need be. Raises `FolderInUse`."""
    async with AsyncExitStack() as held:
        for folder in folders.all:
            await runtime.disk.makedirs(folder)
            try:
                await held.enter_async_context(await runtime.disk.lock(f"{folder}/{LOCK}"))
            except BlockingIOError as error:
                raise FolderInUse(f"{folder!r} is {error.strerror}", path=folder) from error
        yield


# --- The proof ----------------------------------------------------------------------------------------------------


async def prove_identity(
    runtime: Runtime, folders: BookieFolders, bookies: Bookies, *, bookie_id: BookieId, instance_id: str | None
) -> Identity:
    """Compare the cookies, or make them if this is the first start. Call it while the folders are held.

    Raises `WrongDisk` with every difference, `DamagedMetadata` for a cookie that does not read, and what the metadata
    store raises. A cookie of an older layout version that matches is written anew.
    """
    disk = runtime.disk
    wanted = folders.cookie(bookie_id, instance_id)
    stored = await _in_store(bookies, bookie_id)
    found = {folder: await _in_folder(disk, folder) for folder in folders.all}
    data = [path for folder in folders.all for path in await _data_in(disk, folder, folders)]
    marks = frozenset(await disk.listdir(folders.data))

    problems = _differences(wanted, stored, found)
    if stored is None and data:
        problems.insert(0, f"the metadata store has no cookie of this bookie, but there is data: {_shown(data)}")
    if stored is not None and NEW not in marks and not set(data) - {f"{folders.data}/{DIRTY}"}:
        problems.append(f"{folders.data} was in use, and is empty now")
    if problems:
        raise WrongDisk(
            f"these are not the directories of bookie {bookie_id!r}: {'; '.join(problems)}",
            hint=_UNKNOWN if stored is None else _WRONG,
            bookie_id=bookie_id,
            problems=tuple(problems),
        )
    if stored is None:
        await _begin(disk, folders, bookies, wanted)
    else:
        await _upgrade(disk, bookies, wanted, stored, found)
    return Identity(wanted, is_new=stored is None or NEW in marks, was_unclean=DIRTY in marks)


def _differences(wanted: Cookie, stored: StoredCookie | None, found: dict[str, Cookie | None]) -> list[str]:
    problems = []
    if stored is not None:
        problems += [f"in the metadata store, {each}" for each in wanted.differences(stored.cookie)]
    for folder, cookie in found.items():
        if cookie is not None:
            problems += [f"in {folder}/{VERSION}, {each}" for each in wanted.differences(cookie)]
        elif stored is not None:
            problems.append(f"{folder} has no file {VERSION}: it was emptied, or is another disk")
    return problems


async def _in_store(bookies: Bookies, bookie_id: BookieId) -> StoredCookie | None:
    try:
        return await bookies.cookie(bookie_id)
    except DamagedMetadata as error:
        raise DamagedMetadata(
            f"the cookie of bookie {bookie_id!r} in the metadata store is damaged: {error}",
            hint=f"Its directories hold the same bytes in {VERSION}: put them into the store again.",
            bookie_id=bookie_id,
        ) from error


async def _in_folder(disk: Disk, folder: StrPath) -> Cookie | None:
    path = f"{os.fspath(folder)}/{VERSION}"
    try:
        return decode_cookie(await read_file(disk, path))
    except FileNotFoundError:
        return None
    except DamagedMetadata as error:
        raise DamagedMetadata(
            f"{path!r} is damaged: {error}",
            hint="Check this disk. The bookie's cookie in the metadata store holds the bytes that belong here.",
            path=path,
        ) from error


async def stored_bookie_id(disk: Disk, folder: StrPath) -> BookieId | None:
    """Whom a folder belongs to already, so that a bookie started without an id keeps that of its disk.

    Raises `DamagedMetadata`.
    """
    cookie = await _in_folder(disk, folder)
    return None if cookie is None else cookie.bookie_id


async def _data_in(disk: Disk, folder: str, folders: BookieFolders) -> list[str]:
    """Whatever lies in a folder and is not known to be no data: who made it may want it back."""
    found = []
    for name in await disk.listdir(folder):
        path = f"{folder}/{name}"
        if path in folders.all or name in _NO_DATA:
            continue
        if any(other.startswith(f"{path}/") for other in folders.all):
            found += await _data_in(disk, path, folders)  # Only a step on the way to another folder.
        else:
            found.append(path)
    return found


def _shown(paths: list[str]) -> str:
    more = len(paths) - _NAMES_SHOWN_MAX
    return ", ".join(paths[:_NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


# --- The first start, and a new release ---------------------------------------------------------------------------


async def _begin(disk: Disk, folders: BookieFolders, bookies: Bookies, cookie: Cookie) -> None:
    """Make the cookie. What a first start that was interrupted left behind is written over with the same."""
    await _put_mark(disk, folders.data, NEW)
    for folder in folders.all:
        await replace_file(disk, f"{folder}/{VERSION}", encode_cookie(cookie))
    try:
        await bookies.create_cookie(cookie)
    except MetadataOutcomeUnknown:
        stored = await bookies.cookie(cookie.bookie_id)
        if stored is None or stored.cookie != cookie:
            raise
    except QuireError as error:
        if error.outcome is Outcome.NOT_APPLIED:
            # The files would match the cookie of whoever gets this id one day, and pass for that bookie's disk.
            await _take_back(disk, folders)
        if isinstance(error, NodeExists):
            raise WrongDisk(
                f"another bookie {cookie.bookie_id!r} started for the first time just now",
                hint="Give each bookie an id of its own.",
                bookie_id=cookie.bookie_id,
            ) from error
        raise


async def _take_back(disk: Disk, folders: BookieFolders) -> None:
    for folder in folders.all:
        await _drop(disk, folder, VERSION)
    await _drop(disk, folders.data, NEW)


async def _upgrade(
    disk: Disk, bookies: Bookies, wanted: Cookie, stored: StoredCookie, found: dict[str, Cookie | None]
) -> None:
    """Write cookies of an older layout version anew. Those of a newer one stay as they are."""
    for folder, cookie in found.items():
        if cookie is not None and cookie.layout_version < LAYOUT_VERSION:
            await replace_file(disk, f"{folder}/{VERSION}", encode_cookie(wanted))
    if stored.cookie.layout_version < LAYOUT_VERSION:
        await bookies.update_cookie(wanted, expected=stored.version)


# --- Clean or not -------------------------------------------------------------------------------------------------


async def mark_dirty(disk: Disk, folders: BookieFolders) -> None:
    """Remember that the bookie serves. Call it when the ledgers are back and durable, before the first request."""
    await _put_mark(disk, folders.data, DIRTY)
    await _drop(disk, folders.data, NEW)


async def mark_clean(disk: Disk, folders: BookieFolders) -> None:
    """Remember that nothing was left undone. Call it after everything is durable and closed."""
    await _drop(disk, folders.data, DIRTY)


async def _put_mark(disk: Disk, folder: str, name: str) -> None:
    """Durable once the directory is synced, and never after what is changed in it later."""
    await (await disk.create(f"{folder}/{name}", replace=True)).aclose()


async def _drop(disk: Disk, folder: str, name: str) -> None:
    try:
        await disk.unlink(f"{folder}/{name}")
    except FileNotFoundError:
        pass  # Gone already; perhaps not durably, so the directory is synced all the same.
    await disk.sync_directory(folder)
