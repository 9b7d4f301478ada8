"""The list of streams, at a write proxy. Deleting and renaming need a stream that nobody writes: its owner gives it up
first, and does not take it again before that is done. Who asks another proxy is sent to the owner.
"""

from typing import Any

from google.protobuf.message import Message

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream_metadata.names import stream_name
from quire.errors import QuireError
from quire.proxy.catalog import Catalog
from quire.proxy.write.answers import lock_address, not_ready
from quire.proxy.write.operations import Operation
from quire.proxy.write.refusals import Refusals
from quire.proxy.write.stream_table import StreamTable
from quire.rpc.serving import methods
from quire.rpc.serving.transport import Caller, DuplexHandler, StreamHandler, UnaryHandler
from quire.stream.info import lock_holder
from quire.stream.namespace import Namespace


class OwnersCatalog:
    """What anybody may ask of the catalog, and streams that are given up before they go."""

    def __init__(self, namespace: Namespace, table: StreamTable, refusals: Refusals, address: pb.Owner) -> None:
        self._namespace, self._table, self._refusals, self._address = namespace, table, refusals, address

    def handlers(self) -> dict[methods.Method, UnaryHandler | StreamHandler | DuplexHandler]:
        found = dict(Catalog(self._namespace).handlers())
        for method in (methods.DELETE_STREAM, methods.RENAME_STREAM):
            found[method] = self._given_up_first(found[method])
        return found

    def _given_up_first(self, handler: Any) -> UnaryHandler:
        async def given_up_first(request: Any, caller: Caller) -> Message:
            name = stream_name(request.stream)

            def refusing(operation: Operation) -> QuireError:
                return not_ready(name, "it is being deleted or renamed", retry_after_ms=100)

            with self._refusals.blocked(name, refusing):
                await self.give_up(name, caller)
                removed: Message = await handler(request, caller)
                return removed

        return given_up_first

    async def give_up(self, name: str, caller: Caller) -> None:
        """Let a stream go if it is here. Raises `NotOwner` if another proxy has it."""
        stream = self._table.get(name)
        if stream is not None:
            stream.close(lambda _: not_ready(name, "it was given up", retry_after_ms=50))
            await stream.wait_closed()
            return
        context = self._namespace.context
        holder = await lock_holder(context.store, context.paths(name).lock)
        address = lock_address(holder) if holder is not None else None
        if address is not None:
            owner = self._refusals.owner_at(address)
            if (owner.host, owner.port) != (self._address.host, self._address.port):
                raise self._refusals.not_owner(name, owner, caller.tried)
