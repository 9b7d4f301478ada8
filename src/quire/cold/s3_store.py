"""`s3:` cold storage in S3, or in what speaks its protocol, through obstore.

    s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=eu-central-1&virtual_hosted=false

Keys come from `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and the other AWS_* variables, from the instance, or from
options; never from the URI, which is stored.

An object of one request is created on the condition that there is none. One that needs several has no such request: its
name is looked at first, and contains a number that nobody else draws.
"""

from collections.abc import Awaitable, Mapping
from datetime import timedelta
from typing import Any, BinaryIO, Final, TypeVar
from urllib.parse import SplitResult, parse_qsl

from quire.cold.blocking import CALL_TIMEOUT_S, time_for, within
from quire.cold.extras import library
from quire.errors import (
    ColdObjectExists,
    ColdUnavailable,
    InvalidUri,
    NoSuchColdObject,
    NotAuthenticated,
    QuireError,
    RequestDenied,
)

T = TypeVar("T")

ONE_REQUEST_BYTES_MAX: Final = 16 << 20  # Such a request is held in memory as a whole.

_OPTIONS: Final = {"endpoint": "endpoint", "region": "region", "virtual_hosted": "virtual_hosted_style_request"}
_CONNECT_TIMEOUT_S: Final = 5


class S3Store:
    """Objects below a prefix of a bucket."""

    def __init__(
        self, root: str, parts: SplitResult, options: Mapping[str, str], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        """Raises `MissingExtra`, `InvalidUri`."""
        self.root, self._timeout_s = root, timeout_s
        self._obstore: Any = library("obstore", "cold storage in S3")
        self._errors: Any = library("obstore.exceptions", "cold storage in S3")
        given = dict(parse_qsl(parts.query))
        unknown = set(given) - set(_OPTIONS)
        if unknown:
            raise InvalidUri(
                f"{root!r} has options that are not known: {', '.join(sorted(unknown))}",
                hint=f"There are {', '.join(_OPTIONS)}.",
            )
        settings = {_OPTIONS[name]: value for name, value in given.items()} | dict(options)
        seconds = timedelta(seconds=timeout_s)
        try:
            self._store: Any = library("obstore.store", "cold storage in S3").S3Store(
                parts.netloc,
                prefix=parts.path.strip("/") or None,
                config=settings,
                client_options={
                    "allow_http": settings.get("endpoint", "").startswith("http:"),
                    "connect_timeout": timedelta(seconds=min(_CONNECT_TIMEOUT_S, timeout_s)),
                    "timeout": seconds,
                },
                retry_config={"max_retries": 2, "retry_timeout": seconds},
            )
        except (self._errors.BaseError, ValueError) as error:
            raise InvalidUri(f"{root!r} is no address of S3: {error}", uri=root) from error

    async def create(self, name: str, content: BinaryIO, size_bytes: int) -> None:
        content.seek(0)
        if size_bytes <= ONE_REQUEST_BYTES_MAX:
            call = self._obstore.put_async(self._store, name, content.read(), mode="create")
            await self._call(name, call, size_bytes)
            return
        try:
            await self.size(name)
        except NoSuchColdObject:
            await self._call(name, self._obstore.put_async(self._store, name, _blocks(content)), size_bytes)
            return
        raise self._exists(name)

    async def read(self, name: str, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        try:
            return bytes(await self._call(name, self._obstore.get_range_async(self._store, name, start=start, end=end)))
        except ColdUnavailable as error:
            if error.facts.get("is_bucket_missing") or await self.size(name) > start:
                raise
            return b""  # S3 refuses a range that begins behind the end.

    async def size(self, name: str) -> int:
        return int((await self._call(name, self._obstore.head_async(self._store, name)))["size"])

    async def delete(self, name: str) -> None:
        try:
            await self._call(name, self._obstore.delete_async(self._store, name))
        except NoSuchColdObject:
            pass

    async def names(self, prefix: str = "") -> list[str]:
        listing = self._obstore.list(self._store, prefix=prefix or None, chunk_size=1000).collect_async()
        return sorted(found["path"] for found in await self._call(prefix, listing))

    async def aclose(self) -> None:
        pass

    # --- Errors

    async def _call(self, name: str, call: Awaitable[T], size_bytes: int = 0) -> T:
        try:
            return await within(time_for(self._timeout_s, size_bytes), call, self.root)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise ColdUnavailable(
                    f"{self.root}: there is no such bucket",
                    hint="Create it, or correct the URI.",
                    object=name,
                    is_bucket_missing=True,
                ) from error
            raise NoSuchColdObject(f"{self.root} has no object {name!r}", object=name) from error
        except self._errors.BaseError as error:
            raise self._mapped(name, error) from error

    def _mapped(self, name: str, error: Exception) -> QuireError:
        if isinstance(error, self._errors.AlreadyExistsError | self._errors.PreconditionError):
            return self._exists(name)
        problem = f"{self.root}: {name!r}: {_first_line(error)}"
        if isinstance(error, self._errors.PermissionDeniedError):
            return RequestDenied(problem, hint="Give these keys the right to read and write there.", object=name)
        if isinstance(error, self._errors.UnauthenticatedError):
            return NotAuthenticated(problem, hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.", object=name)
        return ColdUnavailable(problem, object=name)

    def _exists(self, name: str) -> ColdObjectExists:
        return ColdObjectExists(f"{self.root} has an object {name!r} already", object=name)


def _blocks(content: BinaryIO) -> Any:
    while block := content.read(5 << 20):
        yield block


def _first_line(error: Exception) -> str:
    """obstore's messages have pages of detail."""
    return str(error).partition("\n")[0]
