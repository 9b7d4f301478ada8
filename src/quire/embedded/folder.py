"""A data folder: where everything of a log on one machine is, and who works in it.

    data/
    ├── lock             held by whoever runs the bookies; says who that is
    ├── metadata.db      the metadata store
    ├── bookie-1/        one folder for each bookie
    └── …

An embedded log (`file:./data`) and a local cluster (`quire up --data ./data`) keep the same things in the same places,
so that a program can begin with the one and go on with the other, in both directions. The folder may be moved or copied
as a whole while nobody works in it: nothing in it says where it is.
"""

import errno
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qs, quote, unquote

from quire.bookie.identity import BookieFolders
from quire.errors import DiskFull, FolderInUse, FolderUnusable, InvalidUri
from quire.metadata import MetadataUri, parse_uri
from quire.runtime import Runtime
from quire.stream.uri import StreamUri, namespace_in
from quire.types import BookieId, bookie_id
from quire.values import dataclass

NAMESPACE: Final = "/default"
METADATA: Final = "metadata.db"
LOCK: Final = "lock"
SUPERVISOR: Final = "quire up"  # What the lock of a folder says that a local cluster has.
HOST: Final = "quire host"  # And one that a process of its own serves: see `quire.embedded.host`.

_BOOKIE: Final = re.compile(r"bookie-([1-9][0-9]{0,5})")
_SCHEME: Final = "file:"
_HINT: Final = "Write file:./data, or file:///var/lib/quire for an absolute path."


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The places in a data folder, whose path is absolute."""

    path: str

    @property
    def lock(self) -> str:
        return f"{self.path}/{LOCK}"

    @property
    def metadata(self) -> str:
        """The file of the metadata store."""
        return f"{self.path}/{METADATA}"

    @property
    def ledgers(self) -> MetadataUri:
        """Where the ledgers' metadata is, for `quire.ledgers` and for bookies."""
        return parse_uri(f"sqlite:{quote(self.metadata)}")

    def streams(self, namespace: str = NAMESPACE) -> StreamUri:
        """Where the streams are, for processes that share the folder while `quire up` serves it."""
        return namespace_in(self.ledgers, namespace if namespace.startswith("/") else f"/{namespace}")

    def bookie_id(self, number: int) -> BookieId:
        """A bookie's name for life, whoever runs it, wherever it listens."""
        return bookie_id(f"bookie-{number}")

    def bookie(self, number: int) -> BookieFolders:
        """The folders of a bookie."""
        return BookieFolders(f"{self.path}/bookie-{number}", moves_with=self.path)

    def bookie_numbers(self) -> list[int]:
        """The bookies that have been here. All of them have to run: any may hold the only copy of something."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := _BOOKIE.fullmatch(name)))


# --- Its URI


@dataclass(frozen=True, slots=True)
class FileUri:
    """A parsed `file:` URI."""

    text: str
    folder: DataFolder
    namespace: str

    def __str__(self) -> str:
        return self.text


def is_file_uri(text: str) -> bool:
    return text[: len(_SCHEME)].lower() == _SCHEME


def parse_file_uri(text: str) -> FileUri:
    """Parse `file:./data`, `file:///abs/data` or `file:./data?namespace=/team`. Raises `InvalidUri`.

    A relative path is taken from where the process is now, and stays there if the process goes elsewhere.
    """
    if not is_file_uri(text):
        raise InvalidUri(f"{text!r} names no folder", hint=_HINT, uri=text)
    location, question, query = text[len(_SCHEME) :].partition("?")
    match = re.fullmatch("//([^/]*)(.*)", location, re.DOTALL)
    if match is not None:
        if match[1].lower() not in ("", "localhost"):
            raise InvalidUri(f"{text!r} names the host {match[1]!r}, but a folder is here", hint=_HINT, uri=text)
        location = match[2]
    try:
        path = unquote(location, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidUri(f"the %-escapes of {text!r} are not UTF-8", hint=_HINT, uri=text) from error
    if not path or "\x00" in path:
        raise InvalidUri(f"{text!r} names no folder", hint=_HINT, uri=text)
    named = parse_qs(query, keep_blank_values=True)
    if (question and set(named) != {"namespace"}) or any(len(values) != 1 for values in named.values()):
        raise InvalidUri(f"{text!r} may only have one parameter, namespace=/path", hint=_HINT, uri=text)
    folder = DataFolder(os.path.abspath(path))
    namespace = named.get("namespace", [NAMESPACE])[0]
    try:
        namespace = folder.streams(namespace).path
    except InvalidUri as error:
        hint = "Write ?namespace=/team."
        raise InvalidUri(f"{namespace!r} in {text!r} is no namespace", hint=hint, uri=text) from error
    return FileUri(text, folder, namespace)


# --- Nobody else


@asynccontextmanager
async def hold_folder(runtime: Runtime, folder: DataFolder, *, holder: str | None = None) -> AsyncIterator[None]:
    """Keep everybody else out of the folder, which is created if need be. `holder` is what others are told.

    Raises `FolderInUse`, `FolderUnusable`, `DiskFull`.
    """
    try:
        await runtime.disk.makedirs(folder.path)
        lock = await runtime.disk.lock(folder.lock, owner=holder or this_program())
    except BlockingIOError as error:
        raise _in_use(folder, error) from error
    except OSError as error:
        raise unusable(folder.path, error) from error
    async with lock:
        yield


def this_program() -> str:
    """What others are told of this process."""
    program = os.path.basename(sys.argv[0] or "") if sys.argv else ""
    return f"{program or 'python'} (process {os.getpid()})"


def _in_use(folder: DataFolder, error: BlockingIOError) -> FolderInUse:
    holder = (error.strerror or "").removeprefix("locked by ")
    if holder.endswith(f"(process {os.getpid()})"):
        hint = "This program has it open already: use that client, or close it first."
    elif holder.startswith((SUPERVISOR, HOST)):
        hint = f"It is served to all processes of this machine: connect to {folder.streams()} instead."
    else:
        hint = f"End that one, or run `quire up --data {folder.path}` to share it between processes."
    return FolderInUse(f"the folder {folder.path!r} is in use by {holder}", hint=hint, path=folder.path, holder=holder)


def unusable(path: str, error: OSError) -> FolderUnusable | DiskFull:
    """What the system's refusal to work in a folder means."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"the disk of {path!r} is full", hint="Free some space, or choose another folder.", path=path)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        problem, hint = "may not be written by this user", "Give yourself the right to write there, or choose another."
    elif error.errno in (errno.ENOTDIR, errno.EEXIST):
        problem, hint = "is not a folder", "Name a folder, or one that does not exist yet."
    else:
        problem, hint = f"cannot be used: {error.strerror or error}", "Check the path and its disk."
    return FolderUnusable(f"{path!r} {problem}", hint=hint, path=path)
