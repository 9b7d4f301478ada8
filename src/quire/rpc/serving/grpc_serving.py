"""Serve one call: its request in, the handler's responses out, and its end as trailers."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final, Self, cast

from google.protobuf.message import DecodeError, Message

from quire.errors import InvalidArgument, QuireError, invariant
from quire.rpc.serving.grpc_headers import TRAILERS_OK, trailers
from quire.rpc.serving.grpc_server_connection import ServerConnection
from quire.rpc.serving.http2_call import Call, CallOver
from quire.rpc.serving.methods import Method
from quire.rpc.serving.refusals import Refusals
from quire.rpc.serving.results import failure_inside, result_of
from quire.rpc.serving.tokens import Permit
from quire.rpc.serving.transport import Caller, DuplexHandler, Offering, StreamHandler, UnaryHandler
from quire.telemetry.events import logger
from quire.values import dataclass

_LOG: Final = logger("serving")


@dataclass(frozen=True, slots=True, eq=False)
class ServedCall:
    """One call, and all that is known of it."""

    connection: ServerConnection
    call: Call
    method: Method
    caller: Caller
    refusals: Refusals
    message_bytes_max: int
    permit: Permit | None = None
    """Where tokens are asked for: may it go on?"""

    def check_permit(self) -> None:
        """Raises why the call may not go on."""
        if self.permit is not None and self.permit.problem is not None:
            raise self.permit.problem

    def on_denied(self) -> None:
        """Whoever waits for the next request looks at the permit; what was read before is answered."""
        self.call.is_read_out = True
        self.call.wake()

    async def request(self) -> Any | None:
        """The only one of a call; None if the caller is gone."""
        body = await self.call.receive()
        if body is not None:
            return self.decoded(body)
        if not self.call.is_over:
            raise InvalidArgument("the call ended without a request")
        return None

    def decoded(self, body: bytes) -> Message:
        try:
            return self.method.request_type.FromString(body)
        except DecodeError as error:
            self.refusals.count("broken_message")
            raise InvalidArgument(f"the request is no {self.method.request_type.__name__}") from error

    async def respond(self, response: Message | bytes) -> None:
        body = response if isinstance(response, bytes) else response.SerializeToString()
        invariant(len(body) <= self.message_bytes_max, "a response is too large to be sent", size=len(body))
        await self.connection.respond(self.call, body)

    def take(self, response: bytes) -> bool:
        """See `quire.rpc.serving.transport.Take`."""
        call = self.call
        if call.is_over or not call.headers_sent or (self.permit is not None and self.permit.problem is not None):
            return False
        return self.connection.send_at_once(call, response, end=False)

    def end(self, error: Exception | None) -> None:
        """Tell the caller, if there still is one."""
        if error is None:
            end = TRAILERS_OK
        elif isinstance(error, QuireError):
            end = trailers(result_of(error))
        elif isinstance(error, CallOver) and self.call.is_over:
            return
        else:
            _LOG.error("call.failed", method=self.method.path, exc_info=error, **self.caller.facts())
            end = trailers(failure_inside())
        if not self.call.is_over:
            self.connection.end(self.call, end)


async def serve_one(served: ServedCall, handler: UnaryHandler) -> None:
    """A call with one response. If it changes anything nobody cancels it when the caller is gone: see
    WritesRunToTheirEnd."""
    try:
        request = await served.request()
        if request is None:
            return
        await served.respond(await handler(request, served.caller))
    except Exception as error:
        served.end(error)
    else:
        served.end(None)


async def serve_many(served: ServedCall, handler: StreamHandler | DuplexHandler) -> None:
    """A call with many responses. It is cancelled when the caller is gone, and the handler's generator is closed."""
    try:
        argument = _Requests(served) if served.method.client_streams else await served.request()
        if argument is None:
            return
        responses = handler(argument, served.caller)
        if isinstance(responses, Offering):
            responses.offer_to(served.take)
        if hasattr(responses, "aclose"):
            async with aclosing(cast(Any, responses)):
                await _respond_all(served, responses)
        else:
            await _respond_all(served, responses)
    except Exception as error:
        served.end(error)
    else:
        served.end(None)


async def _respond_all(served: ServedCall, responses: AsyncIterator[Message | bytes]) -> None:
    async for response in responses:
        await served.respond(response)
        if not served.method.client_streams:
            served.check_permit()


class _Requests:
    """The requests of one call, read as the handler asks for them."""

    def __init__(self, served: ServedCall) -> None:
        self._served = served

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        body = await self._served.call.receive()
        self._served.check_permit()
        if body is None:
            raise StopAsyncIteration
        return self._served.decoded(body)
