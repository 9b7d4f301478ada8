"""`file:` cold storage in a folder of this machine, or one that is mounted on all machines.

An object is written under a name of its own, made durable, and then linked to its real name: a link is made only where
nothing is, so that nobody overwrites what somebody else stored, and nobody ever sees half an object. Once the caller
has given up no link is left.

A folder that is not mounted looks like an empty one, or like none. So the first object leaves a mark in the folder, and
that an object is missing, or deleted already, is believed only where the mark is.
"""

import errno
import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import BinaryIO, Final, TypeVar

from quire.cold.blocking import CALL_TIMEOUT_S, Run, time_for, within
from quire.errors import ColdObjectExists, ColdUnavailable, DiskFull, NoSuchColdObject, RequestDenied

T = TypeVar("T")

_UNFINISHED: Final = ".unfinished-"
MARK: Final = ".quire-cold"


class FileStore:
    """Objects as files below a folder, which is made when the first one is."""

    def __init__(self, root: str, folder: Path, run: Run, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.root, self._folder, self._run, self._timeout_s = root, folder, run, timeout_s

    async def create(self, name: str, content: BinaryIO, size_bytes: int) -> None:
        given_up = Event()
        try:
            await self._call(name, lambda: self._create(name, content, given_up), size_bytes)
        finally:
            given_up.set()

    async def read(self, name: str, start: int, end: int) -> bytes:
        return await self._call(name, lambda: self._read(name, start, end))

    async def size(self, name: str) -> int:
        return await self._call(name, lambda: self._size(name))

    async def delete(self, name: str) -> None:
        await self._call(name, lambda: self._delete(name))

    async def names(self, prefix: str = "") -> list[str]:
        return await self._call(prefix, lambda: self._list(prefix))

    async def aclose(self) -> None:
        pass

    # --- In a thread

    def _path(self, name: str) -> Path:
        return self._folder / name

    def _create(self, name: str, content: BinaryIO, given_up: Event) -> None:
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._leave_mark()
        unfinished = path.with_name(f"{_UNFINISHED}{uuid.uuid4().hex}")
        try:
            with unfinished.open("xb") as file:
                content.seek(0)
                shutil.copyfileobj(content, file, 1 << 20)
                file.flush()
                os.fsync(file.fileno())
            if given_up.is_set():
                return
            os.link(unfinished, path)
            if given_up.is_set():  # Whoever did may have deleted it before it was there.
                path.unlink(missing_ok=True)
        finally:
            unfinished.unlink(missing_ok=True)
        folder = path.parent
        while folder.is_relative_to(self._folder.parent):  # Each may be new: its name has to be durable, too.
            _sync_folder(folder)
            if folder == self._folder.parent or folder == folder.parent:
                break
            folder = folder.parent

    def _leave_mark(self) -> None:
        mark = self._folder / MARK
        if not mark.exists():
            with mark.open("ab") as file:
                os.fsync(file.fileno())

    def _read(self, name: str, start: int, end: int) -> bytes:
        try:
            with self._path(name).open("rb") as file:
                file.seek(start)
                return file.read(max(0, end - start))
        except (FileNotFoundError, NotADirectoryError):
            self._check_mounted()
            raise

    def _size(self, name: str) -> int:
        try:
            return self._path(name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            self._check_mounted()
            raise

    def _delete(self, name: str) -> None:
        path = self._path(name)
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            self._check_mounted()
        with suppress(OSError):  # Folders that are empty now go, too; others stay, and so does the root.
            for folder in path.relative_to(self._folder).parents[:-1]:
                (self._folder / folder).rmdir()

    def _check_mounted(self) -> None:
        """Something is missing here. Raises `ColdUnavailable` if that says nothing."""
        if not (self._folder / MARK).exists():
            raise ColdUnavailable(
                f"{self.root} is no folder that anything was stored in: there is no file {MARK!r}",
                hint=f"Mount it. If it is the right one, and files were brought here by hand, create {MARK!r} in it.",
            )

    def _list(self, prefix: str) -> list[str]:
        found = []
        for folder, _, names in os.walk(self._folder / prefix):
            below = Path(folder).relative_to(self._folder)
            kept = [name for name in names if not name.startswith(_UNFINISHED) and name != MARK]
            found += [(below / name).as_posix() for name in kept]
        return sorted(found)

    # --- Errors

    async def _call(self, name: str, work: Callable[[], T], size_bytes: int = 0) -> T:
        try:
            return await within(time_for(self._timeout_s, size_bytes), self._run(work), self.root)
        except FileExistsError as error:
            raise ColdObjectExists(f"{self.root} has an object {name!r} already", object=name) from error
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NoSuchColdObject(f"{self.root} has no object {name!r}", object=name) from error
        except PermissionError as error:
            raise RequestDenied(
                f"{self.root}: this user may not do that with {name!r}",
                hint="Change the owner or the rights of the folder.",
                object=name,
            ) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"{self.root} has no room for {name!r}", object=name) from error
            raise ColdUnavailable(f"{self.root}: {name!r}: {error}", object=name) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
