"""Every call of the API `quire.v1`, as its .proto file has it."""

from functools import cached_property
from typing import Final

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from quire.codec.pb import quire_v1_pb2 as pb
from quire.values import dataclass


@dataclass(frozen=True, eq=False)
class Method:
    """One call. There is one object for each, so they compare by identity."""

    descriptor: MethodDescriptor

    @property
    def service(self) -> str:
        """With its package: `quire.v1.Writer`."""
        return str(self.descriptor.containing_service.full_name)

    @property
    def name(self) -> str:
        return str(self.descriptor.name)

    @property
    def path(self) -> str:
        """As gRPC sends it: `/quire.v1.Writer/Write`."""
        return f"/{self.service}/{self.name}"

    @property
    def client_streams(self) -> bool:
        return bool(self.descriptor.client_streaming)

    @property
    def server_streams(self) -> bool:
        return bool(self.descriptor.server_streaming)

    @property
    def ends_with_caller(self) -> bool:
        """Whether it need not run on when nobody waits for it: it gives much, or waits, and changes nothing."""
        return self.server_streams or self is FETCH

    @cached_property
    def request_type(self) -> type[Message]:
        return GetMessageClass(self.descriptor.input_type)

    @cached_property
    def response_type(self) -> type[Message]:
        return GetMessageClass(self.descriptor.output_type)

    def __repr__(self) -> str:
        return f"<{self.path}>"


METHODS: Final = {
    (service.name, method.name): Method(method)
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
SERVICES: Final = tuple(service.full_name for service in pb.DESCRIPTOR.services_by_name.values())

WRITE: Final = METHODS["Writer", "Write"]
WRITE_ONCE: Final = METHODS["Writer", "WriteOnce"]
TRUNCATE: Final = METHODS["Writer", "Truncate"]
SEAL: Final = METHODS["Writer", "Seal"]
HEARTBEAT: Final = METHODS["Writer", "Heartbeat"]
RELEASE: Final = METHODS["Writer", "Release"]
CREATE_STREAM: Final = METHODS["Catalog", "CreateStream"]
DELETE_STREAM: Final = METHODS["Catalog", "DeleteStream"]
RENAME_STREAM: Final = METHODS["Catalog", "RenameStream"]
PURGE_STREAM: Final = METHODS["Catalog", "PurgeStream"]
GET_STREAM: Final = METHODS["Catalog", "GetStream"]
LIST_STREAMS: Final = METHODS["Catalog", "ListStreams"]
GET_STREAM_METADATA: Final = METHODS["Catalog", "GetStreamMetadata"]
SET_STREAM_METADATA: Final = METHODS["Catalog", "SetStreamMetadata"]
HANDSHAKE: Final = METHODS["Routing", "Handshake"]
GET_OWNER: Final = METHODS["Routing", "GetOwner"]
WATCH_OWNERSHIP: Final = METHODS["Routing", "WatchOwnership"]
READ: Final = METHODS["Reader", "Read"]
READ_SESSION: Final = METHODS["Reader", "ReadSession"]
FETCH: Final = METHODS["Reader", "Fetch"]
RESOLVE_POSITION: Final = METHODS["Reader", "ResolvePosition"]
COMMIT_POSITION: Final = METHODS["Reader", "CommitPosition"]
GET_POSITION: Final = METHODS["Reader", "GetPosition"]
DELETE_SUBSCRIPTION: Final = METHODS["Reader", "DeleteSubscription"]
SET_ACCEPT_NEW_STREAMS: Final = METHODS["Admin", "SetAcceptNewStreams"]
DRAIN: Final = METHODS["Admin", "Drain"]
LIST_OWNED: Final = METHODS["Admin", "ListOwned"]
GET_LOAD: Final = METHODS["Admin", "GetLoad"]
DUMP_RING: Final = METHODS["Admin", "DumpRing"]
BALANCE: Final = METHODS["Admin", "Balance"]
