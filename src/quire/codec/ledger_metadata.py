"""The metadata of one ledger, in the three format versions that Apache BookKeeper has written so far.

    "BookieMetadataFormatVersion" TAB version LF body

    version 1   lines of text                                   `ledger_metadata_v1`
    version 2   a message in protobuf's text format
    version 3   the length of the message as a varint, then the message in protobuf's binary format

A ledger keeps the version it was created with, so all three are written as well as read. The ledger's id is not stored;
the path says it. Byte for byte in docs/reference/metadata-formats.md.
"""

import re
from typing import Final

from quire.codec import ledger_metadata_v1
from quire.codec.damage import INT32_MAX, reading, shown
from quire.codec.messages import read_binary, read_text, write_binary, write_text
from quire.codec.pb import bookkeeper_metadata_pb2 as pb
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import BookieId, DigestType, EntryId, Fragment, LedgerMetadata, LedgerState, Quorum

_WHAT: Final = "ledger metadata"
_HEADER: Final = b"BookieMetadataFormatVersion\t"
_VERSION_LINE = re.compile(rb"([0-9]{1,9})\n")  # Apache's readers, too, give up at ten digits.
_VARINT32_BYTES_MAX: Final = 5


def encode_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """The bytes to store, in `metadata.format_version`. Raises `InvalidArgument` if that version cannot hold it all."""
    header = _HEADER + b"%d\n" % metadata.format_version
    if metadata.format_version == 1:
        return header + ledger_metadata_v1.encode_body(metadata)
    message = _message(metadata)
    if metadata.format_version == 2:
        return header + write_text(message)
    message.cToken = metadata.ctoken  # Only here: readers of version 2 before 4.10 refuse a name they do not know.
    body = write_binary(message)
    return header + _varint(len(body)) + body


def decode_ledger_metadata(data: bytes) -> LedgerMetadata:
    """The metadata that `data` holds. Raises `DamagedMetadata` for whatever Apache's readers would refuse."""
    if not data.startswith(_HEADER):
        raise DamagedMetadata(f"{_WHAT}: it should start with {_HEADER!r}, but starts with {shown(data[:40])}")
    match = _VERSION_LINE.match(data, len(_HEADER))
    if match is None:
        raise DamagedMetadata(f"{_WHAT}: no version number on the first line, but {shown(data[len(_HEADER) :][:40])}")
    version, body = int(match[1]), data[match.end() :]
    with reading(f"{_WHAT} of version {version}"):
        if version == 1:
            return ledger_metadata_v1.decode_body(body, f"{_WHAT} of version 1")
        if version == 2:
            what = f"{_WHAT} of version 2"
            return _metadata(read_text(body, pb.LedgerMetadataFormat, what, first_line=2), what, version)
        if version == 3:
            what = f"{_WHAT} of version 3"
            return _metadata(read_binary(_delimited(body, what), pb.LedgerMetadataFormat, what), what, version)
    raise DamagedMetadata(f"{_WHAT}: format version {version} is unknown; 1, 2 and 3 exist")


def _message(metadata: LedgerMetadata) -> pb.LedgerMetadataFormat:
    if metadata.password is None or metadata.digest is None:
        raise InvalidArgument(
            f"a ledger without password and digest type cannot be written in format version {metadata.format_version}",
            hint="Such a ledger, left by a very old writer, can only be read; Apache's programs cannot change it.",
        )
    closed = metadata.state is LedgerState.CLOSED
    return pb.LedgerMetadataFormat(
        quorumSize=metadata.quorum.write,
        ensembleSize=metadata.quorum.ensemble,
        length=metadata.length if closed else 0,
        lastEntryId=metadata.last_entry_id if closed else -1,  # Always written: absent, it would be read as 0.
        state=pb.LedgerMetadataFormat.State.Name(metadata.state.value),
        segment=[
            pb.LedgerMetadataFormat.Segment(ensembleMember=fragment.bookies, firstEntryId=fragment.first_entry_id)
            for fragment in metadata.fragments
        ],
        digestType=pb.LedgerMetadataFormat.DigestType.Name(metadata.digest.value),
        password=metadata.password,
        ackQuorumSize=metadata.quorum.ack,
        ctime=metadata.ctime_ms,
        customMetadata=[
            pb.LedgerMetadataFormat.CustomEntry(key=key, value=value) for key, value in metadata.custom.items()
        ],
    )


def _metadata(message: pb.LedgerMetadataFormat, what: str, version: int) -> LedgerMetadata:
    has_password = message.HasField("password")
    if has_password and not message.HasField("digestType"):
        raise DamagedMetadata(f"{what}: a password is stored, but no known digest type")
    closed = message.state == pb.LedgerMetadataFormat.CLOSED
    ack = message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize
    return LedgerMetadata(
        quorum=Quorum(ensemble=message.ensembleSize, write=message.quorumSize, ack=ack),
        fragments=tuple(
            Fragment(EntryId(segment.firstEntryId), tuple(map(BookieId, segment.ensembleMember)))
            for segment in message.segment
        ),
        state=LedgerState(message.state),
        last_entry_id=EntryId(message.lastEntryId if closed else -1),
        length=message.length if closed else 0,
        digest=DigestType(message.digestType) if has_password else None,  # Without a password Apache ignores it.
        password=message.password if has_password else None,
        ctime_ms=message.ctime if message.HasField("ctime") else None,
        custom={entry.key: entry.value for entry in message.customMetadata},
        ctoken=message.cToken,
        format_version=version,
    )


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _delimited(body: bytes, what: str) -> bytes:
    """The message behind its length. Bytes after it are ignored, as Apache's readers do."""
    length = 0
    for index, byte in enumerate(body[:_VARINT32_BYTES_MAX]):
        length |= (byte & 0x7F) << 7 * index
        if byte <= 0x7F:
            start = index + 1
            break
    else:
        raise DamagedMetadata(f"{what}: no message length after the first line")
    if length > min(len(body) - start, INT32_MAX):
        raise DamagedMetadata(f"{what}: a message of {length} bytes should follow, but {len(body) - start} are there")
    return body[start : start + length]
