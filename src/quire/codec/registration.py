"""What a live bookie publishes about itself: the addresses it listens on, and properties.

A bare binary message without header or length. Nothing at all means a bookie from before this format, or one with
nothing to say: its id itself is then the address, `host:port`.

Invariant: what we write is empty or complete. Java clients of BookKeeper 4.18 wait forever for a list of bookies in
which one published half a message.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from quire.codec.damage import INT32_MAX, check_text, decimal, reading
from quire.codec.messages import read_binary, write_binary
from quire.codec.pb import bookkeeper_metadata_pb2 as pb
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import BookieId, plain_fields

BOOKIE_RPC: Final = "bookie-rpc"  # The protocol of the endpoint that clients connect to.


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
    return write_binary(
        pb.BookieServiceInfoFormat(
            endpoints=[
                pb.BookieServiceInfoFormat.Endpoint(
                    id=endpoint.id,
                    port=endpoint.port,
                    host=endpoint.host,
                    protocol=endpoint.protocol,
                    auth=endpoint.auth,
                    extensions=endpoint.extensions,
                )
                for endpoint in info.endpoints
            ],
            properties=dict(info.properties),
        )
    )


def decode_service_info(data: bytes, bookie: BookieId) -> BookieServiceInfo:
    """What `bookie` published as `data`. Raises `DamagedMetadata`."""
    if not data:
        return legacy_service_info(bookie)
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
