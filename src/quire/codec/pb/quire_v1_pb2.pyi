from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODE_UNSPECIFIED: _ClassVar[Code]
    OK: _ClassVar[Code]
    NOT_OWNER: _ClassVar[Code]
    INVALID_REQUEST: _ClassVar[Code]
    UNAUTHENTICATED: _ClassVar[Code]
    REQUEST_DENIED: _ClassVar[Code]
    TOO_LARGE_RECORD: _ClassVar[Code]
    QUOTA_EXCEEDED: _ClassVar[Code]
    INTERNAL: _ClassVar[Code]
    NOT_IMPLEMENTED: _ClassVar[Code]
    SERVICE_UNAVAILABLE: _ClassVar[Code]
    LOCKING: _ClassVar[Code]
    METADATA_UNAVAILABLE: _ClassVar[Code]
    METADATA_DAMAGED: _ClassVar[Code]
    TRANSMIT_ERROR: _ClassVar[Code]
    FLUSH_TIMEOUT: _ClassVar[Code]
    LOG_NOT_FOUND: _ClassVar[Code]
    END_OF_STREAM: _ClassVar[Code]
    TRANSACTION_OUT_OF_ORDER: _ClassVar[Code]
    WRITE_EXCEPTION: _ClassVar[Code]
    STREAM_UNAVAILABLE: _ClassVar[Code]
    WRITE_CANCELLED: _ClassVar[Code]
    OVER_CAPACITY: _ClassVar[Code]
    STREAM_NOT_READY: _ClassVar[Code]
    REGION_UNAVAILABLE: _ClassVar[Code]
    LOG_EXISTS: _ClassVar[Code]
    CHECKSUM_FAILED: _ClassVar[Code]
    TOO_MANY_STREAMS: _ClassVar[Code]
    UNEXPECTED: _ClassVar[Code]
    INVALID_STREAM_NAME: _ClassVar[Code]
    PREDECESSOR_FAILED: _ClassVar[Code]
    DUPLICATE: _ClassVar[Code]
    POSITION_TRUNCATED: _ClassVar[Code]
    READ_OVERLOADED: _ClassVar[Code]
    COLD_UNAVAILABLE: _ClassVar[Code]
    FENCED: _ClassVar[Code]
    POSITION_IN_FUTURE: _ClassVar[Code]
    VERSION_CONFLICT: _ClassVar[Code]
    LOCK_HELD: _ClassVar[Code]
    LOCK_LOST: _ClassVar[Code]
    LOG_READ_ERROR: _ClassVar[Code]

class Applied(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APPLIED_UNSPECIFIED: _ClassVar[Applied]
    NO: _ClassVar[Applied]
    YES: _ClassVar[Applied]
    UNKNOWN: _ClassVar[Applied]

class Edge(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EDGE_UNSPECIFIED: _ClassVar[Edge]
    EARLIEST: _ClassVar[Edge]
    LATEST: _ClassVar[Edge]

class Truncation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTIVE: _ClassVar[Truncation]
    PARTIALLY_TRUNCATED: _ClassVar[Truncation]
    TRUNCATED: _ClassVar[Truncation]

class ServerStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_UNSPECIFIED: _ClassVar[ServerStatus]
    WRITE_AND_ACCEPT: _ClassVar[ServerStatus]
    WRITE_ONLY: _ClassVar[ServerStatus]
    DOWN: _ClassVar[ServerStatus]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    WRITE_PROXY: _ClassVar[Role]
    READ_PROXY: _ClassVar[Role]

class Format(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTRIES: _ClassVar[Format]
    RECORDS: _ClassVar[Format]

class TruncatedPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAIL: _ClassVar[TruncatedPolicy]
    SKIP: _ClassVar[TruncatedPolicy]

class SlowPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEEP: _ClassVar[SlowPolicy]
    DISCONNECT: _ClassVar[SlowPolicy]
    SKIP_TO_LATEST: _ClassVar[SlowPolicy]

class ReadMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[ReadMode]
    TAIL: _ClassVar[ReadMode]
    CATCHUP: _ClassVar[ReadMode]
    COLD: _ClassVar[ReadMode]
CODE_UNSPECIFIED: Code
OK: Code
NOT_OWNER: Code
INVALID_REQUEST: Code
UNAUTHENTICATED: Code
REQUEST_DENIED: Code
TOO_LARGE_RECORD: Code
QUOTA_EXCEEDED: Code
INTERNAL: Code
NOT_IMPLEMENTED: Code
SERVICE_UNAVAILABLE: Code
LOCKING: Code
METADATA_UNAVAILABLE: Code
METADATA_DAMAGED: Code
TRANSMIT_ERROR: Code
FLUSH_TIMEOUT: Code
LOG_NOT_FOUND: Code
END_OF_STREAM: Code
TRANSACTION_OUT_OF_ORDER: Code
WRITE_EXCEPTION: Code
STREAM_UNAVAILABLE: Code
WRITE_CANCELLED: Code
OVER_CAPACITY: Code
STREAM_NOT_READY: Code
REGION_UNAVAILABLE: Code
LOG_EXISTS: Code
CHECKSUM_FAILED: Code
TOO_MANY_STREAMS: Code
UNEXPECTED: Code
INVALID_STREAM_NAME: Code
PREDECESSOR_FAILED: Code
DUPLICATE: Code
POSITION_TRUNCATED: Code
READ_OVERLOADED: Code
COLD_UNAVAILABLE: Code
FENCED: Code
POSITION_IN_FUTURE: Code
VERSION_CONFLICT: Code
LOCK_HELD: Code
LOCK_LOST: Code
LOG_READ_ERROR: Code
APPLIED_UNSPECIFIED: Applied
NO: Applied
YES: Applied
UNKNOWN: Applied
EDGE_UNSPECIFIED: Edge
EARLIEST: Edge
LATEST: Edge
ACTIVE: Truncation
PARTIALLY_TRUNCATED: Truncation
TRUNCATED: Truncation
STATUS_UNSPECIFIED: ServerStatus
WRITE_AND_ACCEPT: ServerStatus
WRITE_ONLY: ServerStatus
DOWN: ServerStatus
ROLE_UNSPECIFIED: Role
WRITE_PROXY: Role
READ_PROXY: Role
ENTRIES: Format
RECORDS: Format
FAIL: TruncatedPolicy
SKIP: TruncatedPolicy
KEEP: SlowPolicy
DISCONNECT: SlowPolicy
SKIP_TO_LATEST: SlowPolicy
MODE_UNSPECIFIED: ReadMode
TAIL: ReadMode
CATCHUP: ReadMode
COLD: ReadMode

class Dlsn(_message.Message):
    __slots__ = ("lssn", "entry_id", "slot_id")
    LSSN_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_ID_FIELD_NUMBER: _ClassVar[int]
    lssn: int
    entry_id: int
    slot_id: int
    def __init__(self, lssn: _Optional[int] = ..., entry_id: _Optional[int] = ..., slot_id: _Optional[int] = ...) -> None: ...

class Owner(_message.Message):
    __slots__ = ("host", "port", "instance", "region")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    instance: str
    region: str
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ..., instance: _Optional[str] = ..., region: _Optional[str] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("code", "message", "hint", "applied", "owner", "owner_live", "retry_after_ms", "epoch", "dlsn", "error")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OWNER_LIVE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DLSN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    code: Code
    message: str
    hint: str
    applied: Applied
    owner: Owner
    owner_live: bool
    retry_after_ms: int
    epoch: int
    dlsn: Dlsn
    error: str
    def __init__(self, code: _Optional[_Union[Code, str]] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ..., applied: _Optional[_Union[Applied, str]] = ..., owner: _Optional[_Union[Owner, _Mapping]] = ..., owner_live: _Optional[bool] = ..., retry_after_ms: _Optional[int] = ..., epoch: _Optional[int] = ..., dlsn: _Optional[_Union[Dlsn, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("dlsn", "behind", "txid", "time_ms", "edge")
    DLSN_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    TXID_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    dlsn: Dlsn
    behind: Dlsn
    txid: int
    time_ms: int
    edge: Edge
    def __init__(self, dlsn: _Optional[_Union[Dlsn, _Mapping]] = ..., behind: _Optional[_Union[Dlsn, _Mapping]] = ..., txid: _Optional[int] = ..., time_ms: _Optional[int] = ..., edge: _Optional[_Union[Edge, str]] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("open", "batch", "ping", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: Open
    batch: Batch
    ping: Ping
    close: Close
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("client_id", "namespace", "app_version", "want_window_bytes")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    APP_VERSION_FIELD_NUMBER: _ClassVar[int]
    WANT_WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    namespace: str
    app_version: str
    want_window_bytes: int
    def __init__(self, client_id: _Optional[str] = ..., namespace: _Optional[str] = ..., app_version: _Optional[str] = ..., want_window_bytes: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("call_seq", "stream", "attempt", "records", "record_set", "atomic", "producer", "txids", "crc32c", "create_if_missing")
    CALL_SEQ_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECORD_SET_FIELD_NUMBER: _ClassVar[int]
    ATOMIC_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    TXIDS_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    CREATE_IF_MISSING_FIELD_NUMBER: _ClassVar[int]
    call_seq: int
    stream: str
    attempt: int
    records: _containers.RepeatedScalarFieldContainer[bytes]
    record_set: RecordSet
    atomic: bool
    producer: Producer
    txids: _containers.RepeatedScalarFieldContainer[int]
    crc32c: int
    create_if_missing: bool
    def __init__(self, call_seq: _Optional[int] = ..., stream: _Optional[str] = ..., attempt: _Optional[int] = ..., records: _Optional[_Iterable[bytes]] = ..., record_set: _Optional[_Union[RecordSet, _Mapping]] = ..., atomic: _Optional[bool] = ..., producer: _Optional[_Union[Producer, _Mapping]] = ..., txids: _Optional[_Iterable[int]] = ..., crc32c: _Optional[int] = ..., create_if_missing: _Optional[bool] = ...) -> None: ...

class RecordSet(_message.Message):
    __slots__ = ("count", "data")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    count: int
    data: bytes
    def __init__(self, count: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Producer(_message.Message):
    __slots__ = ("id", "first_seq")
    ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQ_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    first_seq: int
    def __init__(self, id: _Optional[bytes] = ..., first_seq: _Optional[int] = ...) -> None: ...

class WriteResponse(_message.Message):
    __slots__ = ("opened", "ack", "window", "go_away", "pong")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    ack: Ack
    window: Window
    go_away: GoAway
    pong: Pong
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., window: _Optional[_Union[Window, _Mapping]] = ..., go_away: _Optional[_Union[GoAway, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("server_id", "status", "window_bytes", "window_batches", "max_batch_bytes", "max_record_bytes")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BATCHES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORD_BYTES_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    status: ServerStatus
    window_bytes: int
    window_batches: int
    max_batch_bytes: int
    max_record_bytes: int
    def __init__(self, server_id: _Optional[str] = ..., status: _Optional[_Union[ServerStatus, str]] = ..., window_bytes: _Optional[int] = ..., window_batches: _Optional[int] = ..., max_batch_bytes: _Optional[int] = ..., max_record_bytes: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("call_seq", "result", "placed", "txid_first", "txid_last")
    CALL_SEQ_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    TXID_FIRST_FIELD_NUMBER: _ClassVar[int]
    TXID_LAST_FIELD_NUMBER: _ClassVar[int]
    call_seq: int
    result: Result
    placed: _containers.RepeatedCompositeFieldContainer[Placed]
    txid_first: int
    txid_last: int
    def __init__(self, call_seq: _Optional[int] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., placed: _Optional[_Iterable[_Union[Placed, _Mapping]]] = ..., txid_first: _Optional[int] = ..., txid_last: _Optional[int] = ...) -> None: ...

class Placed(_message.Message):
    __slots__ = ("first", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: Dlsn
    count: int
    def __init__(self, first: _Optional[_Union[Dlsn, _Mapping]] = ..., count: _Optional[int] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("bytes", "batches")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    batches: int
    def __init__(self, bytes: _Optional[int] = ..., batches: _Optional[int] = ...) -> None: ...

class GoAway(_message.Message):
    __slots__ = ("stream", "suggested_owner")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SUGGESTED_OWNER_FIELD_NUMBER: _ClassVar[int]
    stream: str
    suggested_owner: Owner
    def __init__(self, stream: _Optional[str] = ..., suggested_owner: _Optional[_Union[Owner, _Mapping]] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WriteOnceRequest(_message.Message):
    __slots__ = ("namespace", "batch")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    batch: Batch
    def __init__(self, namespace: _Optional[str] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class WriteOnceResponse(_message.Message):
    __slots__ = ("result", "placed", "txid_first", "txid_last")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    TXID_FIRST_FIELD_NUMBER: _ClassVar[int]
    TXID_LAST_FIELD_NUMBER: _ClassVar[int]
    result: Result
    placed: _containers.RepeatedCompositeFieldContainer[Placed]
    txid_first: int
    txid_last: int
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., placed: _Optional[_Iterable[_Union[Placed, _Mapping]]] = ..., txid_first: _Optional[int] = ..., txid_last: _Optional[int] = ...) -> None: ...

class StreamRequest(_message.Message):
    __slots__ = ("namespace", "stream", "with_sizes")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    WITH_SIZES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    with_sizes: bool
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., with_sizes: _Optional[bool] = ...) -> None: ...

class StreamResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TruncateRequest(_message.Message):
    __slots__ = ("namespace", "stream", "before")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    before: Position
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., before: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class TruncateResponse(_message.Message):
    __slots__ = ("first", "segments")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    first: Dlsn
    segments: int
    def __init__(self, first: _Optional[_Union[Dlsn, _Mapping]] = ..., segments: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("namespace", "stream", "to_readers", "create_if_missing", "handed_over")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TO_READERS_FIELD_NUMBER: _ClassVar[int]
    CREATE_IF_MISSING_FIELD_NUMBER: _ClassVar[int]
    HANDED_OVER_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    to_readers: bool
    create_if_missing: bool
    handed_over: bool
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., to_readers: _Optional[bool] = ..., create_if_missing: _Optional[bool] = ..., handed_over: _Optional[bool] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("owner", "epoch", "last_txid")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_TXID_FIELD_NUMBER: _ClassVar[int]
    owner: Owner
    epoch: int
    last_txid: int
    def __init__(self, owner: _Optional[_Union[Owner, _Mapping]] = ..., epoch: _Optional[int] = ..., last_txid: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("namespace", "stream", "suggested_owner", "term", "expected_life")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SUGGESTED_OWNER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_LIFE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    suggested_owner: Owner
    term: int
    expected_life: str
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., suggested_owner: _Optional[_Union[Owner, _Mapping]] = ..., term: _Optional[int] = ..., expected_life: _Optional[str] = ...) -> None: ...

class CreateStreamRequest(_message.Message):
    __slots__ = ("namespace", "stream", "must_not_exist")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    MUST_NOT_EXIST_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    must_not_exist: bool
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., must_not_exist: _Optional[bool] = ...) -> None: ...

class RenameStreamRequest(_message.Message):
    __slots__ = ("namespace", "stream", "new_name")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    NEW_NAME_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    new_name: str
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., new_name: _Optional[str] = ...) -> None: ...

class PurgeStreamRequest(_message.Message):
    __slots__ = ("namespace", "stream", "before_txid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    BEFORE_TXID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    before_txid: int
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., before_txid: _Optional[int] = ...) -> None: ...

class PurgeStreamResponse(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: int
    def __init__(self, segments: _Optional[int] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("lssn", "ledger_id", "is_completed", "truncation", "first_txid", "last_txid", "first_dlsn", "last_dlsn", "record_count", "completed_at_ms", "size_bytes", "is_gone_from_bookies", "cold_file")
    LSSN_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_TXID_FIELD_NUMBER: _ClassVar[int]
    LAST_TXID_FIELD_NUMBER: _ClassVar[int]
    FIRST_DLSN_FIELD_NUMBER: _ClassVar[int]
    LAST_DLSN_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_GONE_FROM_BOOKIES_FIELD_NUMBER: _ClassVar[int]
    COLD_FILE_FIELD_NUMBER: _ClassVar[int]
    lssn: int
    ledger_id: int
    is_completed: bool
    truncation: Truncation
    first_txid: int
    last_txid: int
    first_dlsn: Dlsn
    last_dlsn: Dlsn
    record_count: int
    completed_at_ms: int
    size_bytes: int
    is_gone_from_bookies: bool
    cold_file: str
    def __init__(self, lssn: _Optional[int] = ..., ledger_id: _Optional[int] = ..., is_completed: _Optional[bool] = ..., truncation: _Optional[_Union[Truncation, str]] = ..., first_txid: _Optional[int] = ..., last_txid: _Optional[int] = ..., first_dlsn: _Optional[_Union[Dlsn, _Mapping]] = ..., last_dlsn: _Optional[_Union[Dlsn, _Mapping]] = ..., record_count: _Optional[int] = ..., completed_at_ms: _Optional[int] = ..., size_bytes: _Optional[int] = ..., is_gone_from_bookies: _Optional[bool] = ..., cold_file: _Optional[str] = ...) -> None: ...

class GetStreamResponse(_message.Message):
    __slots__ = ("stream", "segments", "first_dlsn", "first_txid", "last_dlsn", "last_txid", "record_count", "is_sealed", "owner", "subscriptions", "incarnation")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_DLSN_FIELD_NUMBER: _ClassVar[int]
    FIRST_TXID_FIELD_NUMBER: _ClassVar[int]
    LAST_DLSN_FIELD_NUMBER: _ClassVar[int]
    LAST_TXID_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_SEALED_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    stream: str
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    first_dlsn: Dlsn
    first_txid: int
    last_dlsn: Dlsn
    last_txid: int
    record_count: int
    is_sealed: bool
    owner: str
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    incarnation: str
    def __init__(self, stream: _Optional[str] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., first_dlsn: _Optional[_Union[Dlsn, _Mapping]] = ..., first_txid: _Optional[int] = ..., last_dlsn: _Optional[_Union[Dlsn, _Mapping]] = ..., last_txid: _Optional[int] = ..., record_count: _Optional[int] = ..., is_sealed: _Optional[bool] = ..., owner: _Optional[str] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., incarnation: _Optional[str] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("name", "position")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    name: str
    position: Dlsn
    def __init__(self, name: _Optional[str] = ..., position: _Optional[_Union[Dlsn, _Mapping]] = ...) -> None: ...

class ListStreamsRequest(_message.Message):
    __slots__ = ("namespace", "prefix", "page_size", "after", "watch")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    prefix: str
    page_size: int
    after: str
    watch: bool
    def __init__(self, namespace: _Optional[str] = ..., prefix: _Optional[str] = ..., page_size: _Optional[int] = ..., after: _Optional[str] = ..., watch: _Optional[bool] = ...) -> None: ...

class ListStreamsResponse(_message.Message):
    __slots__ = ("streams",)
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, streams: _Optional[_Iterable[str]] = ...) -> None: ...

class StreamMetadata(_message.Message):
    __slots__ = ("data", "version")
    DATA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    version: int
    def __init__(self, data: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class SetStreamMetadataRequest(_message.Message):
    __slots__ = ("namespace", "stream", "data", "expected")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    data: bytes
    expected: int
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., data: _Optional[bytes] = ..., expected: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("role", "address", "shard")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    role: Role
    address: Owner
    shard: int
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., address: _Optional[_Union[Owner, _Mapping]] = ..., shard: _Optional[int] = ...) -> None: ...

class HandshakeRequest(_message.Message):
    __slots__ = ("namespace", "prefix", "want_ownerships")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    WANT_OWNERSHIPS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    prefix: str
    want_ownerships: bool
    def __init__(self, namespace: _Optional[str] = ..., prefix: _Optional[str] = ..., want_ownerships: _Optional[bool] = ...) -> None: ...

class HandshakeResponse(_message.Message):
    __slots__ = ("server_id", "role", "status", "namespace", "members", "owned")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    role: Role
    status: ServerStatus
    namespace: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    owned: _containers.RepeatedCompositeFieldContainer[Ownership]
    def __init__(self, server_id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., status: _Optional[_Union[ServerStatus, str]] = ..., namespace: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., owned: _Optional[_Iterable[_Union[Ownership, _Mapping]]] = ...) -> None: ...

class Ownership(_message.Message):
    __slots__ = ("stream", "owner", "epoch")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    stream: str
    owner: Owner
    epoch: int
    def __init__(self, stream: _Optional[str] = ..., owner: _Optional[_Union[Owner, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class GetOwnerResponse(_message.Message):
    __slots__ = ("owner", "is_owned", "owner_live", "epoch")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    IS_OWNED_FIELD_NUMBER: _ClassVar[int]
    OWNER_LIVE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    owner: Owner
    is_owned: bool
    owner_live: bool
    epoch: int
    def __init__(self, owner: _Optional[_Union[Owner, _Mapping]] = ..., is_owned: _Optional[bool] = ..., owner_live: _Optional[bool] = ..., epoch: _Optional[int] = ...) -> None: ...

class WatchOwnershipRequest(_message.Message):
    __slots__ = ("namespace", "prefix")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    prefix: str
    def __init__(self, namespace: _Optional[str] = ..., prefix: _Optional[str] = ...) -> None: ...

class OwnershipChange(_message.Message):
    __slots__ = ("streams", "status", "members", "members_changed")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[Ownership]
    status: ServerStatus
    members: _containers.RepeatedCompositeFieldContainer[Member]
    members_changed: bool
    def __init__(self, streams: _Optional[_Iterable[_Union[Ownership, _Mapping]]] = ..., status: _Optional[_Union[ServerStatus, str]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., members_changed: _Optional[bool] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("namespace", "stream", "start", "subscription", "format", "max_frame_bytes", "max_bytes_per_s", "truncated", "slow", "slow_lag_bytes", "min_visible", "idle_ping_ms", "exclusive", "lock_timeout_ms", "incarnation")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    SLOW_FIELD_NUMBER: _ClassVar[int]
    SLOW_LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIN_VISIBLE_FIELD_NUMBER: _ClassVar[int]
    IDLE_PING_MS_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    LOCK_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    start: Position
    subscription: str
    format: Format
    max_frame_bytes: int
    max_bytes_per_s: int
    truncated: TruncatedPolicy
    slow: SlowPolicy
    slow_lag_bytes: int
    min_visible: Dlsn
    idle_ping_ms: int
    exclusive: bool
    lock_timeout_ms: int
    incarnation: str
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., start: _Optional[_Union[Position, _Mapping]] = ..., subscription: _Optional[str] = ..., format: _Optional[_Union[Format, str]] = ..., max_frame_bytes: _Optional[int] = ..., max_bytes_per_s: _Optional[int] = ..., truncated: _Optional[_Union[TruncatedPolicy, str]] = ..., slow: _Optional[_Union[SlowPolicy, str]] = ..., slow_lag_bytes: _Optional[int] = ..., min_visible: _Optional[_Union[Dlsn, _Mapping]] = ..., idle_ping_ms: _Optional[int] = ..., exclusive: _Optional[bool] = ..., lock_timeout_ms: _Optional[int] = ..., incarnation: _Optional[str] = ...) -> None: ...

class ReadEvent(_message.Message):
    __slots__ = ("entries", "records", "opened", "gap", "progress", "end_of_stream")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    END_OF_STREAM_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    opened: ReadOpened
    gap: Gap
    progress: Progress
    end_of_stream: bool
    def __init__(self, entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., opened: _Optional[_Union[ReadOpened, _Mapping]] = ..., gap: _Optional[_Union[Gap, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., end_of_stream: _Optional[bool] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("lssn", "entry_id", "is_bare", "data")
    LSSN_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    IS_BARE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    lssn: int
    entry_id: int
    is_bare: bool
    data: bytes
    def __init__(self, lssn: _Optional[int] = ..., entry_id: _Optional[int] = ..., is_bare: _Optional[bool] = ..., data: _Optional[bytes] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("dlsn", "txid", "payload", "flags")
    DLSN_FIELD_NUMBER: _ClassVar[int]
    TXID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    dlsn: Dlsn
    txid: int
    payload: bytes
    flags: int
    def __init__(self, dlsn: _Optional[_Union[Dlsn, _Mapping]] = ..., txid: _Optional[int] = ..., payload: _Optional[bytes] = ..., flags: _Optional[int] = ...) -> None: ...

class ReadOpened(_message.Message):
    __slots__ = ("resolved", "mode", "incarnation")
    RESOLVED_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    resolved: Dlsn
    mode: ReadMode
    incarnation: str
    def __init__(self, resolved: _Optional[_Union[Dlsn, _Mapping]] = ..., mode: _Optional[_Union[ReadMode, str]] = ..., incarnation: _Optional[str] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("to",)
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    to: Dlsn
    def __init__(self, to: _Optional[_Union[Dlsn, _Mapping]] = ..., **kwargs) -> None: ...

class Progress(_message.Message):
    __slots__ = ("position", "mode")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    position: Dlsn
    mode: ReadMode
    def __init__(self, position: _Optional[_Union[Dlsn, _Mapping]] = ..., mode: _Optional[_Union[ReadMode, str]] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("start", "credit", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: SessionStart
    credit: SessionCredit
    stop: SessionStop
    def __init__(self, start: _Optional[_Union[SessionStart, _Mapping]] = ..., credit: _Optional[_Union[SessionCredit, _Mapping]] = ..., stop: _Optional[_Union[SessionStop, _Mapping]] = ...) -> None: ...

class SessionStart(_message.Message):
    __slots__ = ("id", "request", "credit_bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: int
    request: ReadRequest
    credit_bytes: int
    def __init__(self, id: _Optional[int] = ..., request: _Optional[_Union[ReadRequest, _Mapping]] = ..., credit_bytes: _Optional[int] = ...) -> None: ...

class SessionCredit(_message.Message):
    __slots__ = ("id", "bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    id: int
    bytes: int
    def __init__(self, id: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class SessionStop(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class SessionEvent(_message.Message):
    __slots__ = ("id", "event", "ended")
    ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    id: int
    event: ReadEvent
    ended: Result
    def __init__(self, id: _Optional[int] = ..., event: _Optional[_Union[ReadEvent, _Mapping]] = ..., ended: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("namespace", "stream", "start", "format", "min_bytes", "max_bytes", "max_wait_ms", "truncated", "max_records", "incarnation")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    start: Position
    format: Format
    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    truncated: TruncatedPolicy
    max_records: int
    incarnation: str
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., start: _Optional[_Union[Position, _Mapping]] = ..., format: _Optional[_Union[Format, str]] = ..., min_bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., truncated: _Optional[_Union[TruncatedPolicy, str]] = ..., max_records: _Optional[int] = ..., incarnation: _Optional[str] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("event", "next")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    event: ReadEvent
    next: Dlsn
    def __init__(self, event: _Optional[_Union[ReadEvent, _Mapping]] = ..., next: _Optional[_Union[Dlsn, _Mapping]] = ...) -> None: ...

class ResolvePositionRequest(_message.Message):
    __slots__ = ("namespace", "stream", "position")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    position: Position
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class ResolvePositionResponse(_message.Message):
    __slots__ = ("dlsn",)
    DLSN_FIELD_NUMBER: _ClassVar[int]
    dlsn: Dlsn
    def __init__(self, dlsn: _Optional[_Union[Dlsn, _Mapping]] = ...) -> None: ...

class CommitPositionRequest(_message.Message):
    __slots__ = ("namespace", "stream", "subscription", "position", "reset", "incarnation")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    subscription: str
    position: Dlsn
    reset: bool
    incarnation: str
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., subscription: _Optional[str] = ..., position: _Optional[_Union[Dlsn, _Mapping]] = ..., reset: _Optional[bool] = ..., incarnation: _Optional[str] = ...) -> None: ...

class CommitPositionResponse(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: Dlsn
    def __init__(self, position: _Optional[_Union[Dlsn, _Mapping]] = ...) -> None: ...

class GetPositionRequest(_message.Message):
    __slots__ = ("namespace", "stream", "subscription")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    subscription: str
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., subscription: _Optional[str] = ...) -> None: ...

class GetPositionResponse(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: Dlsn
    def __init__(self, position: _Optional[_Union[Dlsn, _Mapping]] = ...) -> None: ...

class SetAcceptNewStreamsRequest(_message.Message):
    __slots__ = ("accept",)
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    accept: bool
    def __init__(self, accept: _Optional[bool] = ...) -> None: ...

class AdminResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: ServerStatus
    def __init__(self, status: _Optional[_Union[ServerStatus, str]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("streams_per_s",)
    STREAMS_PER_S_FIELD_NUMBER: _ClassVar[int]
    streams_per_s: float
    def __init__(self, streams_per_s: _Optional[float] = ...) -> None: ...

class ListOwnedRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OwnedStream(_message.Message):
    __slots__ = ("stream", "state", "epoch", "requests_per_s", "bytes_per_s", "waiting", "last_error", "owned_s", "life")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    OWNED_S_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    stream: str
    state: str
    epoch: int
    requests_per_s: float
    bytes_per_s: float
    waiting: int
    last_error: str
    owned_s: float
    life: str
    def __init__(self, stream: _Optional[str] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., requests_per_s: _Optional[float] = ..., bytes_per_s: _Optional[float] = ..., waiting: _Optional[int] = ..., last_error: _Optional[str] = ..., owned_s: _Optional[float] = ..., life: _Optional[str] = ...) -> None: ...

class ListOwnedResponse(_message.Message):
    __slots__ = ("streams", "room")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[OwnedStream]
    room: int
    def __init__(self, streams: _Optional[_Iterable[_Union[OwnedStream, _Mapping]]] = ..., room: _Optional[int] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("status", "requests_per_s", "bytes_per_s", "load", "streams")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    status: ServerStatus
    requests_per_s: float
    bytes_per_s: float
    load: float
    streams: int
    def __init__(self, status: _Optional[_Union[ServerStatus, str]] = ..., requests_per_s: _Optional[float] = ..., bytes_per_s: _Optional[float] = ..., load: _Optional[float] = ..., streams: _Optional[int] = ...) -> None: ...

class DumpRingRequest(_message.Message):
    __slots__ = ("streams",)
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, streams: _Optional[_Iterable[str]] = ...) -> None: ...

class DumpRingResponse(_message.Message):
    __slots__ = ("members", "streams")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    streams: _containers.RepeatedCompositeFieldContainer[Ownership]
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., streams: _Optional[_Iterable[_Union[Ownership, _Mapping]]] = ...) -> None: ...

class StreamMove(_message.Message):
    __slots__ = ("stream", "source", "target", "load", "life", "problem")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    stream: str
    source: Owner
    target: Owner
    load: float
    life: str
    problem: str
    def __init__(self, stream: _Optional[str] = ..., source: _Optional[_Union[Owner, _Mapping]] = ..., target: _Optional[_Union[Owner, _Mapping]] = ..., load: _Optional[float] = ..., life: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class BalanceRequest(_message.Message):
    __slots__ = ("moves", "water_mark", "rest_s", "moves_max")
    MOVES_FIELD_NUMBER: _ClassVar[int]
    WATER_MARK_FIELD_NUMBER: _ClassVar[int]
    REST_S_FIELD_NUMBER: _ClassVar[int]
    MOVES_MAX_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[StreamMove]
    water_mark: float
    rest_s: float
    moves_max: int
    def __init__(self, moves: _Optional[_Iterable[_Union[StreamMove, _Mapping]]] = ..., water_mark: _Optional[float] = ..., rest_s: _Optional[float] = ..., moves_max: _Optional[int] = ...) -> None: ...

class ProxyBalance(_message.Message):
    __slots__ = ("proxy", "load", "load_then", "streams", "room")
    PROXY_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    LOAD_THEN_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    proxy: Owner
    load: float
    load_then: float
    streams: int
    room: int
    def __init__(self, proxy: _Optional[_Union[Owner, _Mapping]] = ..., load: _Optional[float] = ..., load_then: _Optional[float] = ..., streams: _Optional[int] = ..., room: _Optional[int] = ...) -> None: ...

class BalanceResponse(_message.Message):
    __slots__ = ("balancer", "term", "proxies", "moves")
    BALANCER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PROXIES_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    balancer: Owner
    term: int
    proxies: _containers.RepeatedCompositeFieldContainer[ProxyBalance]
    moves: _containers.RepeatedCompositeFieldContainer[StreamMove]
    def __init__(self, balancer: _Optional[_Union[Owner, _Mapping]] = ..., term: _Optional[int] = ..., proxies: _Optional[_Iterable[_Union[ProxyBalance, _Mapping]]] = ..., moves: _Optional[_Iterable[_Union[StreamMove, _Mapping]]] = ...) -> None: ...
