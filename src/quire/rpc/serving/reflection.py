"""The standard service `grpc.reflection`, by which tools such as grpcurl learn what can be called.

Both of its versions, v1 and v1alpha, have the same messages under two names; older tools know the second only.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from quire.rpc.serving.health import HEALTH_POOL
from quire.rpc.serving.methods import Method
from quire.rpc.serving.transport import Caller, Handlers

_PACKAGES: Final = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
REFLECTION_SERVICES: Final = tuple(f"{package}.ServerReflection" for package in _PACKAGES)
_INVALID_ARGUMENT, _NOT_FOUND = 3, 5

# Of each message: its fields by name, number and type; a type with a capital letter is another message. What begins
# with a dot is one of several of which one is there; what ends with a star is there any number of times.
_MESSAGES: Final = {
    "ServerReflectionRequest": (
        ("host", 1, "string"),
        (".file_by_filename", 3, "string"),
        (".file_containing_symbol", 4, "string"),
        (".file_containing_extension", 5, "ExtensionRequest"),
        (".all_extension_numbers_of_type", 6, "string"),
        (".list_services", 7, "string"),
    ),
    "ExtensionRequest": (("containing_type", 1, "string"), ("extension_number", 2, "int32")),
    "ServerReflectionResponse": (
        ("valid_host", 1, "string"),
        ("original_request", 2, "ServerReflectionRequest"),
        (".file_descriptor_response", 4, "FileDescriptorResponse"),
        (".all_extension_numbers_response", 5, "ExtensionNumberResponse"),
        (".list_services_response", 6, "ListServiceResponse"),
        (".error_response", 7, "ErrorResponse"),
    ),
    "FileDescriptorResponse": (("file_descriptor_proto*", 1, "bytes"),),
    "ExtensionNumberResponse": (("base_type_name", 1, "string"), ("extension_number*", 2, "int32")),
    "ListServiceResponse": (("service*", 1, "ServiceResponse"),),
    "ServiceResponse": (("name", 1, "string"),),
    "ErrorResponse": (("error_code", 1, "int32"), ("error_message", 2, "string")),
}
_TYPES: Final = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
}


def _described(package: str) -> FileDescriptorProto:
    name = f"{package.replace('.', '/')}/reflection.proto"
    file = FileDescriptorProto(name=name, package=package, syntax="proto3")
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for written, number, type in fields:
            field = message.field.add(name=written.strip(".*"), number=number)
            repeated = written.endswith("*")
            field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            field.type = _TYPES.get(type, FieldDescriptorProto.TYPE_MESSAGE)
            if type not in _TYPES:
                field.type_name = f".{package}.{type}"
            if written.startswith("."):
                if not message.oneof_decl:
                    message.oneof_decl.add(name="message_request" if "Request" in message_name else "message_response")
                field.oneof_index = 0
    file.service.add(name="ServerReflection").method.add(
        name="ServerReflectionInfo",
        input_type=f".{package}.ServerReflectionRequest",
        output_type=f".{package}.ServerReflectionResponse",
        client_streaming=True,
        server_streaming=True,
    )
    return file


_POOL: Final = DescriptorPool()
for _package in _PACKAGES:
    _POOL.Add(_described(_package))
_METHODS: Final = tuple(Method(_POOL.FindServiceByName(name).methods[0]) for name in REFLECTION_SERVICES)


class Reflection:
    """Answers about the services of one proxy."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = sorted(services)
        self._pools = (descriptor_pool.Default(), HEALTH_POOL, _POOL)

    def handlers(self) -> Handlers:
        return {method: self._handler(method) for method in _METHODS}

    def _handler(self, method: Method) -> Any:
        async def answer(requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[Message]:
            async for request in requests:
                response: Any = method.response_type(original_request=request)
                self._fill(response, request)
                yield response

        return answer

    def _fill(self, response: Any, request: Any) -> None:
        match request.WhichOneof("message_request"):
            case "list_services":
                for name in self._services:
                    response.list_services_response.service.add(name=name)
            case "file_by_filename":
                self._fill_file(response, [pool.FindFileByName for pool in self._pools], request.file_by_filename)
            case "file_containing_symbol":
                finders = [pool.FindFileContainingSymbol for pool in self._pools]
                self._fill_file(response, finders, request.file_containing_symbol)
            case "all_extension_numbers_of_type" | "file_containing_extension":
                _fail(response, _NOT_FOUND, "there are no extensions here")
            case _:
                _fail(response, _INVALID_ARGUMENT, "nothing was asked")

    def _fill_file(self, response: Any, finders: Sequence[Any], name: str) -> None:
        for find in finders:
            try:
                file = find(name)
            except KeyError:
                continue
            described = FileDescriptorProto()
            for each in _with_all_it_needs(file):
                each.CopyToProto(described)
                response.file_descriptor_response.file_descriptor_proto.append(described.SerializeToString())
            return
        _fail(response, _NOT_FOUND, f"{name} is not known here")


def _fail(response: Any, code: int, message: str) -> None:
    response.error_response.error_code, response.error_response.error_message = code, message


def _with_all_it_needs(file: FileDescriptor) -> list[FileDescriptor]:
    """The file, and those that it imports."""
    found = {file.name: file}
    waiting = [file]
    while waiting:
        for needed in waiting.pop().dependencies:
            if needed.name not in found:
                found[needed.name] = needed
                waiting.append(needed)
    return list(found.values())
