"""What only a client of proxies can do: records under the caller's own numbers, and who owns a stream."""

from collections.abc import Sequence

from quire.codec.batch_checksum import batch_checksum
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream_metadata.names import stream_name
from quire.proxy.client.failures import address_of
from quire.proxy.client.requests import Requests
from quire.rpc.serving import methods
from quire.rpc.serving.methods import Method
from quire.rpc.serving.results import error_of
from quire.stream.append_rules import checked_records
from quire.stream.settings import StreamSettings
from quire.types import DLSN, EntryId, Lssn, SlotId
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of records that may have been sent before."""

    dlsns: Sequence[DLSN]
    """Their places; none if they are there, and it is not known any more where."""
    is_duplicate: bool
    """Whether all of them were there before."""


class Operating:
    """The part of a client that knows of owners."""

    def __init__(self, requests: Requests, namespace: str, settings: StreamSettings) -> None:
        self._requests, self._namespace, self._settings = requests, namespace, settings
        self._timeout_s = settings.call_timeout_s

    async def append_once(
        self,
        stream: str,
        payloads: Sequence[bytes],
        *,
        producer: bytes,
        first_seq: int,
        txids: Sequence[int] | None = None,
    ) -> Appended:
        """Append what is not there yet of the records that this producer, of 16 bytes, counts from `first_seq` on.

        Raises `TxidOutOfOrder` if records before them are missing, and what appending raises.
        """
        name, records = stream_name(stream), checked_records(payloads)
        batch = pb.Batch(
            stream=name,
            records=records,
            txids=txids,
            producer=pb.Producer(id=producer, first_seq=first_seq),
            crc32c=batch_checksum(name, records),
            create_if_missing=self._settings.create_if_missing,
        )
        request = pb.WriteOnceRequest(namespace=self._namespace, batch=batch)
        answer = await self._requests.to_owner(methods.WRITE_ONCE, request, name, timeout_s=self._timeout_s)
        if answer.result.code not in (pb.OK, pb.DUPLICATE):
            raise error_of(answer.result)
        dlsns = [
            DLSN(Lssn(each.first.lssn), EntryId(each.first.entry_id), SlotId(slot))
            for each in answer.placed
            for slot in range(each.first.slot_id, each.first.slot_id + each.count)
        ]
        return Appended(dlsns, answer.result.code == pb.DUPLICATE)

    async def heartbeat_stream(self, stream: str) -> str:
        """Have some proxy own the stream, and prove that it can be written. Returns the owner's host and port."""
        name = stream_name(stream)
        request = pb.HeartbeatRequest(namespace=self._namespace, stream=name, to_readers=True)
        answer = await self._requests.to_owner(methods.HEARTBEAT, request, name, timeout_s=self._timeout_s)
        return address_of(answer.owner)

    async def release_stream(self, stream: str) -> None:
        """Have the owner give it up."""
        name = stream_name(stream)
        request = pb.ReleaseRequest(namespace=self._namespace, stream=name)
        await self._requests.to_owner(methods.RELEASE, request, name, timeout_s=self._timeout_s)

    async def stream_owner(self, stream: str) -> str | None:
        """Host and port of the proxy that owns the stream; None if none does."""
        name = stream_name(stream)
        request = pb.StreamRequest(namespace=self._namespace, stream=name)
        answer = await self._requests.to_writer(methods.GET_OWNER, request, name, timeout_s=self._timeout_s)
        return address_of(answer.owner) if answer.is_owned else None

    async def _to_owner(self, method: Method, stream: str) -> None:
        """A call that may take as long as any, since the owner has something to end first."""
        name = stream_name(stream)
        timeout_s = self._timeout_s + self._settings.lock_timeout_s
        request = pb.StreamRequest(namespace=self._namespace, stream=name)
        await self._requests.to_owner(method, request, name, timeout_s=timeout_s, attempt_timeout_s=timeout_s)
