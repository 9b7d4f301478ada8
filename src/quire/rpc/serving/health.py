"""The standard service `grpc.health.v1.Health`: whether a proxy takes calls.

Its messages live in a pool of their own: a program that also has the package `grpcio-health-checking` must not see two
of them.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from quire.errors import NoSuchStream
from quire.rpc.serving.methods import SERVICES, Method
from quire.rpc.serving.transport import Caller, Handlers

_PACKAGE: Final = "grpc.health.v1"
HEALTH_SERVICE: Final = f"{_PACKAGE}.Health"
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3


def _described() -> FileDescriptorProto:
    file = FileDescriptorProto(name="grpc/health/v1/health.proto", package=_PACKAGE, syntax="proto3")
    request, response = file.message_type.add(), file.message_type.add()
    request.name, response.name = "HealthCheckRequest", "HealthCheckResponse"
    _field(request, "service", FieldDescriptorProto.TYPE_STRING)
    _field(
        response, "status", FieldDescriptorProto.TYPE_ENUM
    ).type_name = f".{_PACKAGE}.HealthCheckResponse.ServingStatus"
    status = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        status.value.add(name=name, number=number)
    service = file.service.add(name="Health")
    for name in ("Check", "Watch"):
        service.method.add(
            name=name,
            input_type=f".{_PACKAGE}.HealthCheckRequest",
            output_type=f".{_PACKAGE}.HealthCheckResponse",
            server_streaming=name == "Watch",
        )
    return file


def _field(message: DescriptorProto, name: str, type: Any) -> FieldDescriptorProto:
    return message.field.add(name=name, number=1, type=type, label=FieldDescriptorProto.LABEL_OPTIONAL)


HEALTH_POOL: Final = DescriptorPool()
HEALTH_POOL.Add(_described())
_METHODS: Final = {method.name: Method(method) for method in HEALTH_POOL.FindServiceByName(HEALTH_SERVICE).methods}
CHECK: Final = _METHODS["Check"]
WATCH: Final = _METHODS["Watch"]


class Health:
    """What health checks are told: of the proxy as a whole, and of each of its services."""

    def __init__(self) -> None:
        self._is_serving = False
        self._changed: asyncio.Event = asyncio.Event()

    def set_serving(self, serving: bool) -> None:
        self._is_serving = serving
        self._changed.set()
        self._changed = asyncio.Event()

    def handlers(self) -> Handlers:
        return {CHECK: self._check, WATCH: self._watch}

    async def _check(self, request: Any, caller: Caller) -> Message:
        status = self._status(request.service)
        if status == _SERVICE_UNKNOWN:
            raise NoSuchStream(f"no service {request.service!r} is known here", hint="Use reflection to list them.")
        return CHECK.response_type(status=status)

    async def _watch(self, request: Any, caller: Caller) -> AsyncIterator[Message]:
        told: int | None = None
        while True:
            changed, status = self._changed, self._status(request.service)
            if status != told:
                told = status
                yield CHECK.response_type(status=status)
            await changed.wait()

    def _status(self, service: str) -> int:
        if service and service not in SERVICES:
            return _SERVICE_UNKNOWN
        return _SERVING if self._is_serving else _NOT_SERVING
