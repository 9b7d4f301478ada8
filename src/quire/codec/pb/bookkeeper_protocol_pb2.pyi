from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProtocolVersion(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERSION_ONE: _ClassVar[ProtocolVersion]
    VERSION_TWO: _ClassVar[ProtocolVersion]
    VERSION_THREE: _ClassVar[ProtocolVersion]

class OperationType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READ_ENTRY: _ClassVar[OperationType]
    ADD_ENTRY: _ClassVar[OperationType]
    RANGE_READ_ENTRY: _ClassVar[OperationType]
    RANGE_ADD_ENTRY: _ClassVar[OperationType]
    AUTH: _ClassVar[OperationType]
    WRITE_LAC: _ClassVar[OperationType]
    READ_LAC: _ClassVar[OperationType]
    GET_BOOKIE_INFO: _ClassVar[OperationType]
    START_TLS: _ClassVar[OperationType]
    FORCE_LEDGER: _ClassVar[OperationType]
    GET_LIST_OF_ENTRIES_OF_LEDGER: _ClassVar[OperationType]
    BATCH_READ_ENTRY: _ClassVar[OperationType]

class StatusCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EOK: _ClassVar[StatusCode]
    ENOLEDGER: _ClassVar[StatusCode]
    ENOENTRY: _ClassVar[StatusCode]
    EBADREQ: _ClassVar[StatusCode]
    EIO: _ClassVar[StatusCode]
    EUA: _ClassVar[StatusCode]
    EBADVERSION: _ClassVar[StatusCode]
    EFENCED: _ClassVar[StatusCode]
    EREADONLY: _ClassVar[StatusCode]
    ETOOMANYREQUESTS: _ClassVar[StatusCode]
    EUNKNOWNLEDGERSTATE: _ClassVar[StatusCode]
VERSION_ONE: ProtocolVersion
VERSION_TWO: ProtocolVersion
VERSION_THREE: ProtocolVersion
READ_ENTRY: OperationType
ADD_ENTRY: OperationType
RANGE_READ_ENTRY: OperationType
RANGE_ADD_ENTRY: OperationType
AUTH: OperationType
WRITE_LAC: OperationType
READ_LAC: OperationType
GET_BOOKIE_INFO: OperationType
START_TLS: OperationType
FORCE_LEDGER: OperationType
GET_LIST_OF_ENTRIES_OF_LEDGER: OperationType
BATCH_READ_ENTRY: OperationType
EOK: StatusCode
ENOLEDGER: StatusCode
ENOENTRY: StatusCode
EBADREQ: StatusCode
EIO: StatusCode
EUA: StatusCode
EBADVERSION: StatusCode
EFENCED: StatusCode
EREADONLY: StatusCode
ETOOMANYREQUESTS: StatusCode
EUNKNOWNLEDGERSTATE: StatusCode

class PacketHeader(_message.Message):
    __slots__ = ("version", "operation", "txn_id", "priority")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    version: ProtocolVersion
    operation: OperationType
    txn_id: int
    priority: int
    def __init__(self, version: _Optional[_Union[ProtocolVersion, str]] = ..., operation: _Optional[_Union[OperationType, str]] = ..., txn_id: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("header", "read", "add", "auth", "write_lac", "read_lac", "bookie_info", "start_tls", "force_ledger", "list_entries", "context")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    AUTH_FIELD_NUMBER: _ClassVar[int]
    WRITE_LAC_FIELD_NUMBER: _ClassVar[int]
    READ_LAC_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_INFO_FIELD_NUMBER: _ClassVar[int]
    START_TLS_FIELD_NUMBER: _ClassVar[int]
    FORCE_LEDGER_FIELD_NUMBER: _ClassVar[int]
    LIST_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    header: PacketHeader
    read: ReadRequest
    add: AddRequest
    auth: AuthMessage
    write_lac: WriteLacRequest
    read_lac: ReadLacRequest
    bookie_info: BookieInfoRequest
    start_tls: StartTlsRequest
    force_ledger: ForceLedgerRequest
    list_entries: ListEntriesRequest
    context: _containers.RepeatedCompositeFieldContainer[ContextPair]
    def __init__(self, header: _Optional[_Union[PacketHeader, _Mapping]] = ..., read: _Optional[_Union[ReadRequest, _Mapping]] = ..., add: _Optional[_Union[AddRequest, _Mapping]] = ..., auth: _Optional[_Union[AuthMessage, _Mapping]] = ..., write_lac: _Optional[_Union[WriteLacRequest, _Mapping]] = ..., read_lac: _Optional[_Union[ReadLacRequest, _Mapping]] = ..., bookie_info: _Optional[_Union[BookieInfoRequest, _Mapping]] = ..., start_tls: _Optional[_Union[StartTlsRequest, _Mapping]] = ..., force_ledger: _Optional[_Union[ForceLedgerRequest, _Mapping]] = ..., list_entries: _Optional[_Union[ListEntriesRequest, _Mapping]] = ..., context: _Optional[_Iterable[_Union[ContextPair, _Mapping]]] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("header", "status", "read", "add", "auth", "write_lac", "read_lac", "bookie_info", "start_tls", "force_ledger", "list_entries")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    AUTH_FIELD_NUMBER: _ClassVar[int]
    WRITE_LAC_FIELD_NUMBER: _ClassVar[int]
    READ_LAC_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_INFO_FIELD_NUMBER: _ClassVar[int]
    START_TLS_FIELD_NUMBER: _ClassVar[int]
    FORCE_LEDGER_FIELD_NUMBER: _ClassVar[int]
    LIST_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    header: PacketHeader
    status: StatusCode
    read: ReadResponse
    add: AddResponse
    auth: AuthMessage
    write_lac: WriteLacResponse
    read_lac: ReadLacResponse
    bookie_info: BookieInfoResponse
    start_tls: StartTlsResponse
    force_ledger: ForceLedgerResponse
    list_entries: ListEntriesResponse
    def __init__(self, header: _Optional[_Union[PacketHeader, _Mapping]] = ..., status: _Optional[_Union[StatusCode, str]] = ..., read: _Optional[_Union[ReadResponse, _Mapping]] = ..., add: _Optional[_Union[AddResponse, _Mapping]] = ..., auth: _Optional[_Union[AuthMessage, _Mapping]] = ..., write_lac: _Optional[_Union[WriteLacResponse, _Mapping]] = ..., read_lac: _Optional[_Union[ReadLacResponse, _Mapping]] = ..., bookie_info: _Optional[_Union[BookieInfoResponse, _Mapping]] = ..., start_tls: _Optional[_Union[StartTlsResponse, _Mapping]] = ..., force_ledger: _Optional[_Union[ForceLedgerResponse, _Mapping]] = ..., list_entries: _Optional[_Union[ListEntriesResponse, _Mapping]] = ...) -> None: ...

class ContextPair(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("ledger_id", "entry_id", "master_key", "previous_lac", "timeout_ms", "flag")
    class Flag(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FENCE_LEDGER: _ClassVar[ReadRequest.Flag]
        ENTRY_PIGGYBACK: _ClassVar[ReadRequest.Flag]
    FENCE_LEDGER: ReadRequest.Flag
    ENTRY_PIGGYBACK: ReadRequest.Flag
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_LAC_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    master_key: bytes
    previous_lac: int
    timeout_ms: int
    flag: ReadRequest.Flag
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., master_key: _Optional[bytes] = ..., previous_lac: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., flag: _Optional[_Union[ReadRequest.Flag, str]] = ...) -> None: ...

class AddRequest(_message.Message):
    __slots__ = ("ledger_id", "entry_id", "master_key", "body", "write_flags", "flag")
    class Flag(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RECOVERY_ADD: _ClassVar[AddRequest.Flag]
    RECOVERY_ADD: AddRequest.Flag
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    WRITE_FLAGS_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    master_key: bytes
    body: bytes
    write_flags: int
    flag: AddRequest.Flag
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., master_key: _Optional[bytes] = ..., body: _Optional[bytes] = ..., write_flags: _Optional[int] = ..., flag: _Optional[_Union[AddRequest.Flag, str]] = ...) -> None: ...

class WriteLacRequest(_message.Message):
    __slots__ = ("ledger_id", "lac", "master_key", "body")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LAC_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    lac: int
    master_key: bytes
    body: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., lac: _Optional[int] = ..., master_key: _Optional[bytes] = ..., body: _Optional[bytes] = ...) -> None: ...

class ReadLacRequest(_message.Message):
    __slots__ = ("ledger_id",)
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    def __init__(self, ledger_id: _Optional[int] = ...) -> None: ...

class BookieInfoRequest(_message.Message):
    __slots__ = ("requested",)
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    requested: int
    def __init__(self, requested: _Optional[int] = ...) -> None: ...

class StartTlsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForceLedgerRequest(_message.Message):
    __slots__ = ("ledger_id",)
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    def __init__(self, ledger_id: _Optional[int] = ...) -> None: ...

class ListEntriesRequest(_message.Message):
    __slots__ = ("ledger_id",)
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    def __init__(self, ledger_id: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("status", "ledger_id", "entry_id", "body", "max_lac", "lac_updated_ms")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    MAX_LAC_FIELD_NUMBER: _ClassVar[int]
    LAC_UPDATED_MS_FIELD_NUMBER: _ClassVar[int]
    status: StatusCode
    ledger_id: int
    entry_id: int
    body: bytes
    max_lac: int
    lac_updated_ms: int
    def __init__(self, status: _Optional[_Union[StatusCode, str]] = ..., ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., body: _Optional[bytes] = ..., max_lac: _Optional[int] = ..., lac_updated_ms: _Optional[int] = ...) -> None: ...

class AddResponse(_message.Message):
    __slots__ = ("status", "ledger_id", "entry_id")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    status: StatusCode
    ledger_id: int
    entry_id: int
    def __init__(self, status: _Optional[_Union[StatusCode, str]] = ..., ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ...) -> None: ...

class WriteLacResponse(_message.Message):
    __slots__ = ("status", "ledger_id")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    status: StatusCode
    ledger_id: int
    def __init__(self, status: _Optional[_Union[StatusCode, str]] = ..., ledger_id: _Optional[int] = ...) -> None: ...

class ReadLacResponse(_message.Message):
    __slots__ = ("status", "ledger_id", "lac_body", "last_entry_body")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LAC_BODY_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_BODY_FIELD_NUMBER: _ClassVar[int]
    status: StatusCode
    ledger_id: int
    lac_body: bytes
    last_entry_body: bytes
    def __init__(self, status: _Optional[_Union[StatusCode, str]] = ..., ledger_id: _Optional[int] = ..., lac_body: _Optional[bytes] = ..., last_entry_body: _Optional[bytes] = ...) -> None: ...

class BookieInfoResponse(_message.Message):
    __slots__ = ("status", "total_disk_bytes", "free_disk_bytes")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    status: StatusCode
    total_disk_bytes: int
    free_disk_bytes: int
    def __init__(self, status: _Optional[_Union[StatusCode, str]] = ..., total_disk_bytes: _Optional[int] = ..., free_disk_bytes: _Optional[int] = ...) -> None: ...

class StartTlsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForceLedgerResponse(_message.Message):
    __slots__ = ("status", "ledger_id")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    status: StatusCode
    ledger_id: int
    def __init__(self, status: _Optional[_Union[StatusCode, str]] = ..., ledger_id: _Optional[int] = ...) -> None: ...

class ListEntriesResponse(_message.Message):
    __slots__ = ("status", "ledger_id", "availability")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    AVAILABILITY_FIELD_NUMBER: _ClassVar[int]
    status: StatusCode
    ledger_id: int
    availability: bytes
    def __init__(self, status: _Optional[_Union[StatusCode, str]] = ..., ledger_id: _Optional[int] = ..., availability: _Optional[bytes] = ...) -> None: ...

class AuthMessage(_message.Message):
    __slots__ = ("plugin", "payload")
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    plugin: str
    payload: bytes
    def __init__(self, plugin: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...
