"""What a live bookie publishes about itself: the addresses it listens on, and properties.

A bare binary message without header or length. Nothing at all means a bookie from before this format, or one with
nothing to say: its id itself is then the address, `host:port`.

Invariant: what we write is empty or complete. Java clients of BookKeeper 4.18 wait forever for a list of bookies in
which one published half a message.
"""

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final

from quire.codec.damage import INT32_MAX, check_text, decimal, reading
from quire.codec.protobuf import bytes_field, message_fields, number_field, text_field
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import BookieId, plain_fields
from quire.values import dataclass

BOOKIE_RPC: Final = "bookie-rpc"  # The protocol of the endpoint that clients connect to.

_ENDPOINTS, _PROPERTIES = 6, 7  # Fields of BookieServiceInfoFormat in protos/bookkeeper_metadata.proto.
_ID, _PORT, _HOST, _PROTOCOL, _AUTH, _EXTENSIONS = 1, 2, 3, 4, 5, 6  # Of an endpoint.
_KEY, _VALUE = 1, 2  # Of a property.


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address that a bookie serves. A stock bookie has `bookie` (bookie-rpc), perhaps `httpserver` (http).

    The port is any 32-bit number here: what one endpoint makes of it must not hide the others from a reader.
    """

    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()  # `tls` where the bookie can switch to it.

    def __post_init__(self) -> None:
        if not -INT32_MAX - 1 <= self.port <= INT32_MAX:
            raise InvalidArgument(f"port {self.port} of endpoint {self.id!r} does not fit into 32 bits")
        for text in (self.id, self.host, self.protocol, *self.auth, *self.extensions):
            check_text(text)


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """All that a bookie publishes."""

    endpoints: tuple[Endpoint, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "properties", MappingProxyType(dict(self.properties)))
        for text in (*self.properties, *self.properties.values()):
            check_text(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), plain_fields(self)

    @property
    def rpc_endpoint(self) -> Endpoint | None:
        """Where clients connect: the first endpoint that speaks the bookie protocol."""
        return next((endpoint for endpoint in self.endpoints if endpoint.protocol == BOOKIE_RPC), None)


def encode_service_info(info: BookieServiceInfo) -> bytes:
    """The bytes that protobuf's library writes, with properties ascending by name."""
    return b"".join(
        [
            *(bytes_field(_ENDPOINTS, _encode_endpoint(endpoint)) for endpoint in info.endpoints),
            *(
                bytes_field(_PROPERTIES, text_field(_KEY, key) + text_field(_VALUE, value))
                for key, value in sorted(info.properties.items(), key=lambda item: item[0].encode())
            ),
        ]
    )


def _encode_endpoint(endpoint: Endpoint) -> bytes:
    return b"".join(
        [
            text_field(_ID, endpoint.id),
            number_field(_PORT, endpoint.port),
            text_field(_HOST, endpoint.host),
            text_field(_PROTOCOL, endpoint.protocol),
            *(text_field(_AUTH, text) for text in endpoint.auth),
            *(text_field(_EXTENSIONS, text) for text in endpoint.extensions),
        ]
    )


def decode_service_info(data: bytes, bookie: BookieId) -> BookieServiceInfo:
    """What `bookie` published as `data`. Raises `DamagedMetadata`."""
    if not data:
        return legacy_service_info(bookie)
    try:
        return _decode_plain(data)
    except (ValueError, InvalidArgument):
        return _decode_any(data, bookie)


def _decode_plain(data: bytes) -> BookieServiceInfo:
    """What we and Apache's bookies write. Raises `ValueError` for what takes the whole of protobuf to understand."""
    endpoints: list[Endpoint] = []
    properties: dict[str, str] = {}
    for number, value in message_fields(data):
        if number == _ENDPOINTS and isinstance(value, bytes):
            endpoints.append(_decode_endpoint(value))
        elif number == _PROPERTIES and isinstance(value, bytes):
            pair = dict(message_fields(value))
            if list(pair) != [_KEY, _VALUE]:
                raise ValueError("a property without its name or value, or with more")
            properties[_text(pair[_KEY])] = _text(pair[_VALUE])
        else:
            raise ValueError("an unknown field")
    return BookieServiceInfo(tuple(endpoints), properties)


def _decode_endpoint(data: bytes) -> Endpoint:
    once: dict[int, int | bytes] = {}
    many: dict[int, list[str]] = {_AUTH: [], _EXTENSIONS: []}
    for number, value in message_fields(data):
        if number in many:
            many[number].append(_text(value))
        else:
            once[number] = value
    port = once.get(_PORT)
    if once.keys() != {_ID, _PORT, _HOST, _PROTOCOL} or not isinstance(port, int):
        raise ValueError("not the fields of an endpoint")
    return Endpoint(
        id=_text(once[_ID]),
        host=_text(once[_HOST]),
        port=port,
        protocol=_text(once[_PROTOCOL]),
        auth=tuple(many[_AUTH]),
        extensions=tuple(many[_EXTENSIONS]),
    )


def _text(value: int | bytes) -> str:
    if isinstance(value, int):
        raise ValueError("a number instead of text")
    return value.decode()


def _decode_any(data: bytes, bookie: BookieId) -> BookieServiceInfo:
    from quire.codec.messages import read_binary  # Google's library, which takes longer to load than a log to open.
    from quire.codec.pb import bookkeeper_metadata_pb2 as pb

    what = f"registration of bookie {bookie!r}"
    message = read_binary(data, pb.BookieServiceInfoFormat, what)
    with reading(what):
        return BookieServiceInfo(
            tuple(
                Endpoint(
                    id=endpoint.id,
                    host=endpoint.host,
                    port=endpoint.port,
                    protocol=endpoint.protocol,
                    auth=tuple(endpoint.auth),
                    extensions=tuple(endpoint.extensions),
                )
                for endpoint in message.endpoints
            ),
            dict(message.properties),
        )


def legacy_service_info(bookie: BookieId) -> BookieServiceInfo:
    """What a bookie means that published nothing: its id is its address. Raises `DamagedMetadata` if it is none."""
    host, *rest = bookie.split(":")
    if not host or not rest:
        raise DamagedMetadata(
            f"bookie {bookie!r} published no address, and its id is not host:port",
            hint="Restart the bookie with a version that publishes its endpoints, or with an id of the form host:port.",
            bookie_id=bookie,
        )
    port = decimal(rest[0], f"the port in bookie id {bookie!r}", low=0, high=65535)
    return BookieServiceInfo((Endpoint(id=bookie, host=host, port=port, protocol=BOOKIE_RPC),))
