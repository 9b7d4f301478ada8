"""`hdfs:` and `webhdfs:` cold storage in HDFS, through the HTTP interface of its name node: no JVM is needed.

    hdfs://namenode:8020/archive?http=9870&user=quire       what Spark would use, and where its HTTP interface is
    webhdfs://namenode:9870/archive?user=quire

Requests are fsspec's. An object is created without overwriting: HDFS refuses a name that is taken. A file that is being
written is visible there, so it is written under a name of its own and renamed, which HDFS refuses as well if the name
is taken. Once the caller has given up nothing is left under it.
"""

from collections.abc import Callable
from contextlib import suppress
from threading import Event
from typing import Any, BinaryIO, Final, TypeVar
from urllib.parse import SplitResult, parse_qsl
from uuid import uuid4

from quire.cold.blocking import CALL_TIMEOUT_S, Run, time_for, within
from quire.cold.extras import library
from quire.errors import ColdObjectExists, ColdUnavailable, InvalidUri, NoSuchColdObject, RequestDenied

T = TypeVar("T")

DEFAULT_HTTP_PORT: Final = 9870
_UNFINISHED: Final = ".unfinished-"


class WebHdfsStore:
    """Objects as files below a folder of HDFS."""

    def __init__(self, root: str, parts: SplitResult, run: Run, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Raises `MissingExtra`, `InvalidUri`."""
        self.root, self._run, self._timeout_s = root, run, timeout_s
        self._folder = parts.path.rstrip("/")
        options = dict(parse_qsl(parts.query))
        user, http = options.pop("user", None) or parts.username, options.pop("http", None)
        if options or (http is not None and not http.isdecimal()):
            raise InvalidUri(f"{root!r} has options that are not known", hint="There are `http` (a port) and `user`.")
        port = int(http) if http else parts.port if parts.scheme == "webhdfs" and parts.port else DEFAULT_HTTP_PORT
        self._requests: Any = library("requests", "cold storage in HDFS")
        webhdfs: Any = library("fsspec.implementations.webhdfs", "cold storage in HDFS").WebHDFS
        self._fs: Any = webhdfs(host=parts.hostname, port=port, user=user, skip_instance_cache=True)
        self._limit_requests()

    def _limit_requests(self) -> None:
        """No request of a thread may hang for ever."""
        session, timeout_s = self._fs.session, self._timeout_s
        plain = session.request

        def request(method: str, url: str, **options: Any) -> Any:
            return plain(method, url, **{"timeout": timeout_s, **options})

        session.request = request

    async def create(self, name: str, content: BinaryIO, size_bytes: int) -> None:
        given_up = Event()
        try:
            await self._call(name, lambda: self._create(name, content, given_up), size_bytes)
        finally:
            given_up.set()

    async def read(self, name: str, start: int, end: int) -> bytes:
        return await self._call(name, lambda: self._read(name, start, end))

    async def size(self, name: str) -> int:
        return await self._call(name, lambda: int(self._fs.info(self._path(name))["size"]))

    async def delete(self, name: str) -> None:
        await self._call(name, lambda: self._fs.rm(self._path(name)))

    async def names(self, prefix: str = "") -> list[str]:
        return await self._call(prefix, lambda: sorted(self._names(self._path(prefix) if prefix else self._folder)))

    async def aclose(self) -> None:
        with suppress(ColdUnavailable):  # All threads hang. Their requests end by themselves.
            await within(self._timeout_s, self._run(self._fs.session.close), self.root)

    # --- In a thread

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _create(self, name: str, content: BinaryIO, given_up: Event) -> None:
        path = self._path(name)
        folder, _, own = path.rpartition("/")
        unfinished = f"{folder}/{_UNFINISHED}{uuid4().hex}"
        content.seek(0)
        try:
            answer = self._fs._call("CREATE", "put", unfinished, redirect=False, overwrite="false")
            stored = self._fs.session.request("PUT", answer.headers["Location"], data=content)
            stored.raise_for_status()
            if given_up.is_set():
                raise TimeoutError(own)
            renamed = self._fs._call("RENAME", "put", unfinished, destination=path).json()
            if not renamed.get("boolean"):
                raise FileExistsError(own)
            if given_up.is_set():  # Whoever did may have deleted it before it was there.
                self._fs.rm(path)
        except BaseException:
            with suppress(OSError, RuntimeError, ValueError):
                self._fs.rm(unfinished)
            raise

    def _read(self, name: str, start: int, end: int) -> bytes:
        if end <= start or start >= int(self._fs.info(self._path(name))["size"]):
            return b""
        answer = self._fs._call("OPEN", path=self._path(name), offset=start, length=end - start)
        return bytes(answer.content)

    def _names(self, folder: str) -> list[str]:
        found: list[str] = []
        try:
            listing = self._fs.ls(folder, detail=True)
        except FileNotFoundError:
            return []
        for each in listing:
            path = each["name"]
            if each["type"] == "directory":
                found += self._names(path)
            elif not path.rpartition("/")[2].startswith(_UNFINISHED):
                found.append(path.removeprefix(f"{self._folder}/"))
        return found

    # --- Errors

    async def _call(self, name: str, work: Callable[[], T], size_bytes: int = 0) -> T:
        try:
            return await within(time_for(self._timeout_s, size_bytes), self._run(work), self.root)
        except FileExistsError as error:
            raise ColdObjectExists(f"{self.root} has an object {name!r} already", object=name) from error
        except FileNotFoundError as error:
            raise NoSuchColdObject(f"{self.root} has no object {name!r}", object=name) from error
        except PermissionError as error:
            raise RequestDenied(
                f"{self.root}: {name!r}: {error}", hint="Name a user who may, with ?user= in the URI.", object=name
            ) from error
        except (self._requests.RequestException, RuntimeError, ValueError) as error:  # The last two are fsspec's.
            raise ColdUnavailable(f"{self.root}: {name!r}: {error}", object=name) from error
