"""The generated messages: they are those of the .proto file, and what is read is complete."""

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc  # type: ignore[import-untyped]

from quire.codec.messages import read_binary, read_text, write_binary
from quire.codec.pb import bookkeeper_metadata_pb2 as pb
from quire.errors import DamagedMetadata

PROTOS = Path(__file__).parents[3] / "protos"


def test_the_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    """Otherwise `make protos` was forgotten. Compares descriptors, which do not depend on the compiler's release."""
    descriptors = tmp_path / "descriptors"
    name = "bookkeeper_metadata.proto"
    arguments = ["protoc", f"-Iquire/codec/pb={PROTOS}", f"--descriptor_set_out={descriptors}", str(PROTOS / name)]
    assert protoc.main(arguments) == 0
    (compiled,) = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file
    generated = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(generated)
    for message in (*compiled.message_type, *generated.message_type):
        for field in (*message.field, *(field for nested in message.nested_type for field in nested.field)):
            field.ClearField("json_name")  # The compiler adds it to one of the two.
    assert generated == compiled


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\x0a", "no CookieFormat message"),
        (b"\x0a\x01a", "journalDir is missing"),
        (b"\x0a\x01\xff\x12\x00\x1a\x00", "bookieHost is not UTF-8"),
    ],
)
def test_an_incomplete_message_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(DamagedMetadata, match=f"cookie: .*{complaint}"):
        read_binary(data, pb.CookieFormat, "cookie")


def test_required_fields_are_required_in_text_too_at_any_depth() -> None:
    with pytest.raises(DamagedMetadata, match="cookie: ledgerDirs is missing"):
        read_text(b"bookieHost: 'a' journalDir: 'b'", pb.CookieFormat, "cookie")
    text = b"quorumSize: 1 ensembleSize: 1 length: 0 state: OPEN segment { }"
    with pytest.raises(DamagedMetadata, match=r"ledger: segment\.firstEntryId is missing"):
        read_text(text, pb.LedgerMetadataFormat, "ledger")


@pytest.mark.parametrize("pair", ["0a01ff120161", "0a01611201ff"])
def test_text_in_a_map_must_be_text(pair: str) -> None:
    with pytest.raises(DamagedMetadata):
        read_binary(b"\x3a\x06" + bytes.fromhex(pair), pb.BookieServiceInfoFormat, "registration")


def test_equal_messages_give_equal_bytes() -> None:
    forward = {f"key{number}": "" for number in range(50)}
    backward = dict(reversed(forward.items()))
    messages = [pb.BookieServiceInfoFormat(properties=properties) for properties in (forward, backward)]
    assert write_binary(messages[0]) == write_binary(messages[1])
