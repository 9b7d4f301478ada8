"""What each path of the gateway does: one method for each, over one client for each namespace.

Every method takes a request and returns an answer, or raises: `Rejected`, or an error of Quire's tree. What becomes of
that is told in `app`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from quire.codec.stream_metadata.names import stream_name
from quire.errors import InvalidArgument, ProxyDraining
from quire.proxy.gateway import answers
from quire.proxy.gateway.admission import Admission, Arrival, Bodies
from quire.proxy.gateway.bodies import (
    JSON,
    NDJSON,
    MediaType,
    body_bytes_max,
    check_encoding,
    commit_of,
    json_object,
    media_type,
    records_of,
    truncation_of,
)
from quire.proxy.gateway.clients import StreamClient, deduplicating, owning
from quire.proxy.gateway.limits import SMALL_BODY_BYTES_MAX
from quire.proxy.gateway.problems import RETRY_AFTER_MS, Rejected
from quire.proxy.gateway.queries import (
    fetch_of,
    listed_before,
    page_of,
    parse_query,
    producer_of,
    segment_text,
    tail_of,
)
from quire.proxy.gateway.reading import fetch
from quire.proxy.gateway.settings import GatewaySettings
from quire.proxy.gateway.tail import Tail, until_gone
from quire.proxy.gateway.writers import SharedWriters
from quire.rpc.serving.tokens import Tokens
from quire.stream.same_stream import missing
from quire.stream.start import Txid
from quire.types import DLSN

T = TypeVar("T")

_SCAN_TIMEOUT_S: Final = 30.0
_HARDLY_ANY: Final = 1  # Byte of what is read ahead, by readers that are not there to read.
_TAKEN_FOR_JSON: Final = ("", JSON, "application/x-www-form-urlencoded")  # The last is what `curl -d` says of anything.
_LARGE_HINT: Final = "Send less at a time, or keep large things elsewhere and append where they are."


class Handlers:
    """The gateway's paths, over the namespaces that it serves."""

    def __init__(
        self, clients: Mapping[str, StreamClient], settings: GatewaySettings, tokens: Tokens | None = None
    ) -> None:
        self._clients, self._settings, self._tokens = clients, settings, tokens
        self.writers = {name: SharedWriters(client, settings) for name, client in clients.items()}
        self.calls = Admission("requests", most=settings.calls_max)
        self.fetches = Admission("reads", most=settings.fetches_max)
        self.tails = Admission("event streams", most=settings.tails_max)
        self.bodies = Bodies(most=settings.body_bytes_max)
        self.stopping = asyncio.Event()

    async def aclose(self) -> None:
        self.stopping.set()
        for writers in self.writers.values():
            await writers.aclose()

    # --- Records

    async def append(self, request: Request) -> ASGIApp:
        client, writers, stream = self._stream(request)
        parse_query(request.scope["query_string"])
        key = request.headers.get("idempotency-key")
        producer = None if key is None else producer_of(key)
        once = deduplicating(client)
        if producer is not None and once is None:
            raise Rejected(
                HTTPStatus.NOT_IMPLEMENTED,
                "what is behind this gateway cannot tell records that were sent before",
                hint="Leave Idempotency-Key away, or let the gateway use write proxies. Nothing was written.",
            )
        media = media_type(request.headers.get("content-type", ""))
        check_encoding(media, request.headers.get("content-encoding", ""))
        code = None if media.name in (JSON, NDJSON) else "TOO_LARGE_RECORD"
        async with self._body(request, body_bytes_max(media), too_large=code) as body:
            payloads, txids = records_of(media, body)
            if producer is None or once is None:
                dlsns = await writers.append(stream, payloads, txids)
                return JSONResponse(answers.appended(dlsns, len(payloads)))
            found = await writers.to_the_end(
                stream,
                once.append_once(
                    stream, payloads, producer=producer.producer, first_seq=producer.first_seq, txids=txids
                ),
            )
            return JSONResponse(answers.appended(found.dlsns, len(payloads), is_duplicate=found.is_duplicate))

    async def fetch(self, request: Request) -> ASGIApp:
        client, _, stream = self._stream(request)
        wanted = fetch_of(request.scope["query_string"])
        wanted = wanted._replace(wait_s=min(wanted.wait_s, self._settings.wait_s_max))
        with self.fetches.one():
            found = await self._while_wanted(
                request, fetch(client, stream, wanted, read_ahead_bytes_max=self._settings.read_ahead_bytes_max)
            )
        return JSONResponse(
            answers.fetched(found.records, found.next, is_end=found.is_end, as_text=wanted.as_text),
            headers={"cache-control": "no-store"},
        )

    async def tail(self, request: Request) -> ASGIApp:
        client, _, stream = self._stream(request)
        wanted = tail_of(request.scope["query_string"], request.headers.get("last-event-id"))
        check = self._token_check(request)
        self.tails.take()
        tail = Tail(
            client,
            stream,
            wanted,
            self._settings,
            check=check,
            stopping=self.stopping,
            on_closed=self.tails.give_back,
        )
        await tail.open()
        return tail

    def _token_check(self, request: Request) -> Callable[[], None]:
        """Raises once the token of a request that stays open does not count any more."""
        tokens = self._tokens
        if tokens is None:
            return lambda: None
        known = tokens.check(request.headers.get("authorization", ""))

        def check() -> None:
            problem = tokens.problem_of(known)
            if problem is not None:
                raise problem

        return check

    # --- Streams

    async def list(self, request: Request) -> ASGIApp:
        """By name, level by level. A page begins behind the name before it, whether or not that is still there."""
        client, _ = self._namespace(request)
        page, names, more = page_of(request.scope["query_string"]), list[str](), False
        async with asyncio.timeout(_SCAN_TIMEOUT_S), aclosing(_scan(client, page.prefix)) as scan:
            async for name in scan:
                if page.after and not listed_before(page.after, name):
                    continue
                if len(names) == page.limit:
                    more = True
                    break
                names.append(name)
        return JSONResponse({"streams": names, "next_page": names[-1] if more else None})

    async def describe(self, request: Request) -> ASGIApp:
        client, _, stream = self._stream(request)
        parse_query(request.scope["query_string"])
        return JSONResponse(answers.stream_facts(await client.stream_info(stream)))

    async def create(self, request: Request) -> ASGIApp:
        client, _, stream = self._stream(request)
        parse_query(request.scope["query_string"])
        await self._nothing(request)
        is_new = not await client.stream_exists(stream)
        if is_new:
            await client.create_stream(stream)
        return JSONResponse({"stream": stream, "created": is_new}, 201 if is_new else 200)

    async def delete(self, request: Request) -> ASGIApp:
        client, writers, stream = self._stream(request)
        parse_query(request.scope["query_string"])
        async with writers.without(stream):
            await client.delete_stream(stream)
        return Response(status_code=204)

    async def truncate(self, request: Request) -> ASGIApp:
        client, _, stream = self._stream(request)
        parse_query(request.scope["query_string"])
        before = truncation_of(await self._small_json(request))
        first = await client.truncate_stream(stream, before=Txid(before) if isinstance(before, int) else before)
        return JSONResponse({"stream": stream, "first_dlsn": str(first)})

    async def seal(self, request: Request) -> ASGIApp:
        client, writers, stream = self._stream(request)
        parse_query(request.scope["query_string"])
        await self._nothing(request)
        if not await writers.seal(stream):
            await client.seal_stream(stream)
        return JSONResponse({"stream": stream, "sealed": True})

    # --- Who owns a stream

    async def owner(self, request: Request) -> ASGIApp:
        client, _, stream = self._stream(request)
        parse_query(request.scope["query_string"])
        proxies = owning(client)
        owner = await proxies.stream_owner(stream) if proxies else (await client.stream_info(stream)).owner
        return JSONResponse({"stream": stream, "owner": owner})

    async def heartbeat(self, request: Request) -> ASGIApp:
        """Over a client that writes by itself, the gateway owns what it writes."""
        client, writers, stream = self._stream(request)
        parse_query(request.scope["query_string"])
        await self._nothing(request)
        proxies = owning(client)
        if proxies is not None:
            owner: str | None = await proxies.heartbeat_stream(stream)
        else:
            if not await client.stream_exists(stream):
                raise missing(stream)
            await writers.acquire(stream)
            owner = (await client.stream_info(stream)).owner
        return JSONResponse({"stream": stream, "owner": owner})

    async def release(self, request: Request) -> ASGIApp:
        client, writers, stream = self._stream(request)
        parse_query(request.scope["query_string"])
        await self._nothing(request)
        proxies = owning(client)
        if proxies is None and not await client.stream_exists(stream):
            raise missing(stream)
        await writers.let_go(stream)
        if proxies is not None:
            await proxies.release_stream(stream)
        return JSONResponse({"stream": stream})

    # --- Named positions

    async def position(self, request: Request) -> ASGIApp:
        client, _, stream = self._stream(request)
        parse_query(request.scope["query_string"])
        name = subscription_name(request.path_params["name"])
        stored = (await client.subscriptions(stream)).get(name)
        return JSONResponse(_position(stream, name, stored))

    async def commit(self, request: Request) -> ASGIApp:
        client, _, stream = self._stream(request)
        parse_query(request.scope["query_string"])
        name = subscription_name(request.path_params["name"])
        wanted = commit_of(await self._small_json(request))
        async with client.open_reader(
            stream, start=wanted.position, skip_truncated=True, read_ahead_bytes_max=_HARDLY_ANY
        ):
            pass  # Raises `PositionInFuture` for a place that most likely belongs to another stream.
        async with client.open_reader(
            stream, subscription=name, skip_truncated=True, read_ahead_bytes_max=_HARDLY_ANY
        ) as reader:
            stored = await reader.commit(wanted.position, may_go_back=wanted.reset)
        return JSONResponse(_position(stream, name, stored))

    async def forget(self, request: Request) -> ASGIApp:
        client, _, stream = self._stream(request)
        parse_query(request.scope["query_string"])
        await client.delete_subscription(stream, subscription_name(request.path_params["name"]))
        return Response(status_code=204)

    # --- What a request says

    def _namespace(self, request: Request) -> tuple[StreamClient, SharedWriters]:
        name = segment_text(request.path_params["namespace"])
        if name not in self._clients:
            served = ", ".join(map(repr, sorted(self._clients)))
            raise Rejected(
                HTTPStatus.NOT_FOUND,
                f"namespace {name!r} is not served here",
                hint=f"Served here: {served}.",
                code="NO_SUCH_NAMESPACE",
            )
        return self._clients[name], self.writers[name]

    def _stream(self, request: Request) -> tuple[StreamClient, SharedWriters, str]:
        return *self._namespace(request), stream_name(segment_text(request.path_params["stream"]))

    async def _small_json(self, request: Request) -> bytes:
        media = media_type(request.headers.get("content-type", ""))
        if media.name not in _TAKEN_FOR_JSON:
            raise Rejected(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body must be {JSON}, not {media.name!r}", hint="Say so."
            )
        check_encoding(MediaType(JSON, media.charset), request.headers.get("content-encoding", ""))
        async with self._body(request, SMALL_BODY_BYTES_MAX) as body:
            return body

    async def _nothing(self, request: Request) -> None:
        """The body, of which nothing is expected; an empty object is nothing, too."""
        async with self._body(request, SMALL_BODY_BYTES_MAX) as body:
            json_object(body)

    @asynccontextmanager
    async def _body(self, request: Request, bytes_max: int, *, too_large: str | None = None) -> AsyncIterator[bytes]:
        """The whole body; it counts as under way during the block. No more of it is kept than it may have."""
        said = request.headers.get("content-length", "")
        if said.isdecimal() and int(said) > bytes_max:
            raise _too_large(bytes_max, too_large)
        body, loop = bytearray(), asyncio.get_running_loop()
        limit = asyncio.timeout(self._settings.body_timeout_s)
        arrival = Arrival(loop.time(), lambda: limit.reschedule(loop.time()))
        self.bodies.begin(arrival)
        try:
            with self.calls.lent():
                async with limit:
                    async for chunk in request.stream():
                        if len(body) + len(chunk) > bytes_max:
                            raise _too_large(bytes_max, too_large)
                        self.bodies.add(arrival, len(chunk), loop.time())
                        body += chunk
            self.bodies.arrived(arrival)
            yield bytes(body)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise Rejected(
                HTTPStatus.REQUEST_TIMEOUT,
                f"the body did not arrive within {self._settings.body_timeout_s:g} s, or slowly while others waited",
                hint="Nothing was done. Send it again, faster or in smaller requests.",
            ) from error
        finally:
            self.bodies.forget(arrival)

    async def _while_wanted(self, request: Request, reading: Coroutine[Any, Any, T]) -> T:
        """What a read brings, unless its client leaves first, or the gateway stops."""
        task = asyncio.create_task(reading, name="read")
        gone = asyncio.create_task(until_gone(request.receive), name="client of a read")
        stopping = asyncio.create_task(self.stopping.wait(), name="end of a read")
        tasks = (task, gone, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.wait(tasks)
        if not task.cancelled():
            return task.result()
        if not gone.cancelled():
            raise ClientDisconnect
        raise ProxyDraining("the gateway is being stopped", retry_after_ms=RETRY_AFTER_MS)


def subscription_name(raw: str) -> str:
    """Of a path. Raises `InvalidArgument` for what could not be told apart from other nodes."""
    name = segment_text(raw)
    if not name or "/" in name:
        raise InvalidArgument(
            f"{name!r} cannot name a subscription",
            hint="Use any name without slashes.",
        )
    return name


def _position(stream: str, name: str, stored: DLSN | None) -> dict[str, Any]:
    return {"stream": stream, "subscription": name, "position": None if stored is None else str(stored)}


def _too_large(bytes_max: int, code: str | None) -> Rejected:
    return Rejected(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body may have {bytes_max} bytes at most", code=code, hint=_LARGE_HINT
    )


async def _scan(client: StreamClient, prefix: str) -> AsyncGenerator[str]:
    async for name in client.scan_streams(prefix):
        yield name
