"""Where one proxy is served by gRPC: connections, calls, and what is not taken.

Invariants:
  WritesRunToTheirEnd   a handler with one answer, once begun, runs to its end, whoever waits for that answer: an append
                        is not cut in half because its caller gave up. Such handlers are bounded as all calls are.
  GoneIsGone            a handler with many answers, or one that only waits, ends as soon as its caller is gone.
  RefusedAlone          what a client does wrong costs its call, or its connection; never anybody else's.
  OneLeavesRoom         a connection holds no more memory for what has arrived than it leaves to all others: with N that
                        take what they can there is an equal share for one more.
"""

import asyncio
import ssl
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument, NotAuthenticated, OverCapacity, invariant
from quire.rpc.serving.grpc_headers import caller_of, trailers, wrong_request
from quire.rpc.serving.grpc_server_connection import ServerConnection
from quire.rpc.serving.grpc_serving import ServedCall, serve_many, serve_one
from quire.rpc.serving.health import HEALTH_SERVICE, Health
from quire.rpc.serving.http2_call import Call
from quire.rpc.serving.methods import SERVICES, Method
from quire.rpc.serving.reflection import REFLECTION_SERVICES, Reflection
from quire.rpc.serving.refusals import Refusals
from quire.rpc.serving.results import failure_inside, result_of
from quire.rpc.serving.settings import ServingSettings
from quire.rpc.serving.tokens import Permit, Tokens
from quire.rpc.serving.transport import Caller, Handlers
from quire.runtime import Runtime
from quire.runtime.network import Server as Listener
from quire.telemetry.events import Seldom, logger
from quire.telemetry.metrics import Registry

_AGE_JITTER: Final = 0.1
_LOG: Final = logger("serving")
_LOOK_S: Final = 1.0  # How soon a call that lasts ends after its token did.
_NO_CALLER: Final = Caller(client_id="")  # Of health checks and reflection.


async def bind_grpc(
    runtime: Runtime,
    host: str,
    port: int,
    *,
    settings: ServingSettings | None = None,
    registry: Registry | None = None,
    tls: ssl.SSLContext | None = None,
) -> "GrpcServer":
    """Listen at `host` (port 0: any free port), silent until `start`. Raises `OSError`."""
    if tls is not None:
        tls.set_alpn_protocols(["h2"])  # Clients of gRPC insist on it.
    server = GrpcServer(runtime, settings or ServingSettings(), Refusals(registry))
    server.listener = await runtime.network.serve(host, port, partial(ServerConnection, server), tls=tls)
    return server


class GrpcServer:
    """One listening address. `refusals` counts what was not taken."""

    listener: Listener

    def __init__(self, runtime: Runtime, settings: ServingSettings, refusals: Refusals) -> None:
        self.settings, self.refusals = settings, refusals
        self._rng = runtime.rng
        self._handlers: dict[str, tuple[Method, Any]] = {}
        self._connections: dict[ServerConnection, None] = {}
        self._serving: dict[asyncio.Task[None], None] = {}
        self._health = Health()
        self._incoming_bytes = 0
        self._tokens: Tokens | None = None
        self._permits: dict[ServedCall, None] = {}  # Of calls that last.
        self._looking: asyncio.TimerHandle | None = None
        self._has_started = self.is_closing = False
        self._idle = asyncio.Event()
        self.tell_refused = Seldom(_LOG.warning, "connection.refused")

    @property
    def address(self) -> tuple[str, int]:
        return self.listener.address

    @property
    def incoming_bytes(self) -> int:
        """Memory that is reserved for what has arrived."""
        return self._incoming_bytes

    def counts(self) -> dict[str, int]:
        """What was refused, and what there is now."""
        return {"connections": len(self._connections), "calls": len(self._serving), **self.refusals.counts()}

    async def start(self, handlers: Handlers) -> None:
        invariant(not self._has_started, "a server is started twice")
        reflection = Reflection((*SERVICES, HEALTH_SERVICE, *REFLECTION_SERVICES))
        for method, handler in {**self._health.handlers(), **reflection.handlers(), **handlers}.items():
            self._handlers[method.path] = (method, handler)
        self._has_started = True
        for connection in list(self._connections):
            connection.begin()

    def require(self, tokens: Tokens) -> None:
        """From now on calls of the API need a token. Calls that last are looked at again and again."""
        self._tokens = tokens
        self._look_again()

    def _look_again(self) -> None:
        assert self._tokens is not None
        for served in list(self._permits):
            permit = served.permit
            if permit is not None and permit.problem is None:
                permit.problem = self._tokens.problem_of(permit.known)
                if permit.problem is not None:
                    self.refusals.count("revoked_call")
                    served.on_denied()
        self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look_again)

    def set_serving(self, serving: bool) -> None:
        self._health.set_serving(serving)

    async def aclose(self, *, grace_s: float = 0.0) -> None:
        self.is_closing = True
        if self._looking is not None:
            self._looking.cancel()
        self._health.set_serving(False)
        for connection in list(self._connections):
            connection.leave(None)
        if grace_s > 0:
            try:
                async with asyncio.timeout(grace_s):
                    while self._serving:
                        self._idle.clear()
                        await self._idle.wait()
            except TimeoutError:
                pass
        for connection in list(self._connections):
            connection.give_up_calls()
        while self._serving:
            tasks = list(self._serving)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for connection in list(self._connections):
            connection.close()  # It names the last call that we saw: what else is under way never happened.
        await self.listener.aclose()

    # --- For connections --------------------------------------------------------------------------------------

    def on_connection(self, connection: ServerConnection) -> None:
        if self.is_closing:
            connection.abort()
        elif len(self._connections) >= self.settings.connections_max:
            self.refusals.count("too_many_connections")
            connection.abort()
        else:
            self._connections[connection] = None
            if self._has_started:
                connection.begin()

    def on_lost(self, connection: ServerConnection) -> None:
        self._connections.pop(connection, None)

    def age_s(self) -> float:
        """How old a connection may become."""
        return self.settings.connection_age_s * (1 - _AGE_JITTER * self._rng.random())

    def reserve(self, size: int, *, held_bytes: int) -> bool:
        """Whether there is memory for so much more of a connection that holds so much. OneLeavesRoom."""
        left_bytes = self.settings.incoming_bytes_max - self._incoming_bytes - size
        if held_bytes + size > left_bytes:
            return False
        self._incoming_bytes += size
        return True

    def release(self, size: int) -> None:
        self._incoming_bytes -= size

    def on_call(self, connection: ServerConnection, call: Call, headers: Mapping[str, str]) -> None:
        """A call was opened: serve it, or say why not."""
        if (status := wrong_request(headers)) is not None:
            self.refusals.count("not_grpc")
            connection.refuse_http(call, status)
            return
        found = self._handlers.get(headers.get(":path", ""))
        if found is None:
            self.refusals.count("unknown_method")
            error = InvalidArgument("this proxy does not serve that call", hint="Ask a proxy of another kind.")
            connection.end(call, trailers(result_of(error, code=pb.NOT_IMPLEMENTED)))
            return
        method, handler = found
        caller = caller_of(headers, peer=connection.peer)
        if caller is None:
            if method.service in SERVICES:
                self.refusals.count("no_client_id")
                connection.end(call, trailers(result_of(NotAuthenticated("the call does not say whose it is"))))
                return
            caller = _NO_CALLER
        if len(self._serving) >= self.settings.calls_max:
            self.refusals.count("too_many_calls")
            connection.end(call, trailers(result_of(OverCapacity("as many calls are open as there may be"))))
            return
        permit: Permit | None = None
        if self._tokens is not None and method.service in SERVICES:
            try:
                permit = Permit(self._tokens.check(headers.get("authorization", "")))
            except NotAuthenticated as error:
                self.refusals.count(str(error.facts["cause"]))
                connection.end(call, trailers(result_of(error)))
                return
        size_max = self.settings.calls.message_bytes_max
        served = ServedCall(connection, call, method, caller, self.refusals, size_max, permit)
        serve = serve_many if method.server_streams else serve_one
        task = asyncio.create_task(serve(served, handler), name=f"serve {method.path}")
        self._serving[task] = None
        if permit is not None and method.server_streams:
            self._permits[served] = None
            task.add_done_callback(lambda _: self._permits.pop(served, None))
        connection.on_serving(call, task, may_cancel=method.ends_with_caller)
        task.add_done_callback(partial(self._on_served, connection, call))

    def _on_served(self, connection: ServerConnection, call: Call, task: "asyncio.Task[None]") -> None:
        self._serving.pop(task, None)
        connection.on_served(call)
        if not self._serving:
            self._idle.set()
        if not call.is_over:  # It was cancelled from inside; its caller shall not wait for ever.
            connection.end(call, trailers(failure_inside()))
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error  # A bug of ours: the loop's own handler shall hear of it.
