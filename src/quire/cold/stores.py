"""Which cold storage a URI stands for.

    file:/mnt/archive                         a folder
    s3://bucket/prefix?endpoint=http://…      S3 and what speaks its protocol; keys come from AWS_* in the environment
    hdfs://namenode:8020/archive?http=9870    HDFS, through the name node's WebHDFS port
    webhdfs://namenode:9870/archive           the same
    memory:name                               this process, for tests

A root is stored in the metadata, where every client reads it: so it is absolute, and holds no secrets.
"""

import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from quire.cold.blocking import CALL_TIMEOUT_S, Run, Threads
from quire.cold.read_limit import LimitedStore, ReadLimit
from quire.cold.store import ColdStore
from quire.errors import InvalidUri, UnknownScheme

SCHEMES: Final = ("file", "s3", "hdfs", "webhdfs", "memory")

_HINT: Final = "Write file:/mnt/archive, s3://bucket/prefix, hdfs://namenode:8020/archive?http=9870 or memory:name."
_MEMORY: dict[str, dict[str, bytes]] = {}  # What `memory:` roots of this process hold.


class ColdStores:
    """Opens each root once. One for a client; `aclose` ends what it opened."""

    def __init__(
        self,
        *,
        run: Run | None = None,
        s3_options: Mapping[str, str] | None = None,
        memory: dict[str, dict[str, bytes]] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """`run` does blocking work; without it threads do: some for each root, so that one that hangs keeps no other
        waiting, and some for what needs no store. `s3_options` are obstore's, for keys that are not in the environment.
        `memory` holds what `memory:` roots have, unless all of the process may share it.
        """
        self._given_run = run
        self._threads: list[Threads] = []
        self.run = self._new_run()  # For files: encoding, decoding and checking them.
        self._s3_options, self._timeout_s = dict(s3_options or {}), timeout_s
        self._memory = _MEMORY if memory is None else memory
        self._open: dict[str, ColdStore] = {}
        self._limit: ReadLimit | None = None

    def limit_reads(self, limit: ReadLimit) -> None:
        """From now on stores read no more at a time than that allows."""
        self._limit = limit

    def _new_run(self) -> Run:
        if self._given_run is not None:
            return self._given_run
        self._threads.append(Threads())  # Has no thread before it has work.
        return self._threads[-1]

    def at(self, root: str) -> ColdStore:
        """The cold storage at this URI; nothing is asked of it yet.

        Raises `InvalidUri`, `UnknownScheme`, and `MissingExtra` if a library is not installed.
        """
        normal = normal_root(root)
        if normal not in self._open:
            self._open[normal] = self._made(normal)
        store = self._open[normal]
        return store if self._limit is None else LimitedStore(store, self._limit)

    def _made(self, root: str) -> ColdStore:
        """Imports no more than this kind of store needs: most programs need none."""
        parts = urlsplit(root)
        match parts.scheme:
            case "file":
                from pathlib import Path

                from quire.cold.file_store import FileStore

                return FileStore(root, Path(parts.path), self._new_run(), timeout_s=self._timeout_s)
            case "memory":
                from quire.cold.memory_store import MemoryStore

                return MemoryStore(root, self._memory.setdefault(root, {}))
            case "s3":
                from quire.cold.s3_store import S3Store

                return S3Store(root, parts, self._s3_options, timeout_s=self._timeout_s)
            case _:
                from quire.cold.webhdfs_store import WebHdfsStore

                return WebHdfsStore(root, parts, self._new_run(), timeout_s=self._timeout_s)

    async def aclose(self) -> None:
        for store in self._open.values():
            await store.aclose()
        self._open.clear()
        for threads in self._threads:
            threads.close()
        del self._threads[1:]  # Those of roots. The first may be needed again.


def normal_root(uri: str) -> str:
    """The one way to write a root. Raises `InvalidUri`, `UnknownScheme`."""
    try:
        parts = urlsplit(uri)
        parts.port, parse_qsl(parts.query, strict_parsing=True) if parts.query else None
    except ValueError as error:
        raise InvalidUri(f"{uri!r} is no address of cold storage: {error}", hint=_HINT, uri=uri) from error
    if parts.scheme not in SCHEMES:
        raise UnknownScheme(f"{uri!r} is no address of cold storage", hint=_HINT, uri=uri)
    problem = _problem(parts)
    if problem:
        raise InvalidUri(f"{uri!r} is no address of cold storage: {problem}", hint=_HINT, uri=uri)
    if parts.scheme == "file":
        return f"file:{os.path.abspath(parts.path)}"
    if parts.scheme == "memory":
        return f"memory:{parts.path}"
    return parts._replace(path=parts.path.rstrip("/"), fragment="").geturl()


def _problem(parts: SplitResult) -> str | None:
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path or parts.query:
            return "a folder is missing, or there is more than a folder"
    elif parts.scheme == "memory":
        if parts.netloc or not parts.path or parts.query:
            return "a name is missing, or there is more than a name"
    elif not parts.hostname:
        return "it names no bucket or host"
    elif parts.password is not None or (parts.username is not None and parts.scheme == "s3"):
        return "it would be stored where everybody can read it, so it must not hold keys or passwords"
    return None
