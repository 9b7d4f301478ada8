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
from quire.codec.protobuf import bytes_field, number_field, text_field, varint
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import DigestType, LedgerMetadata, LedgerState

_WHAT: Final = "ledger metadata"
_HEADER: Final = b"BookieMetadataFormatVersion\t"
_VERSION_LINE = re.compile(rb"([0-9]{1,9})\n")  # Apache's readers, too, give up at ten digits.
_VARINT32_BYTES_MAX: Final = 5

# Fields of LedgerMetadataFormat in protos/bookkeeper_metadata.proto.
_WRITE_QUORUM, _ENSEMBLE, _LENGTH, _LAST_ENTRY, _STATE, _FRAGMENT = 1, 2, 3, 4, 5, 6
_DIGEST, _PASSWORD, _ACK_QUORUM, _CTIME, _CUSTOM, _CTOKEN = 7, 8, 9, 10, 11, 12
_MEMBER, _FIRST_ENTRY = 1, 2  # Of a fragment.
_KEY, _VALUE = 1, 2  # Of custom metadata.


def encode_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """The bytes to store, in `metadata.format_version`. Raises `InvalidArgument` if that version cannot hold it all."""
    header = _HEADER + b"%d\n" % metadata.format_version
    if metadata.format_version == 1:
        return header + ledger_metadata_v1.encode_body(metadata)
    if metadata.format_version == 2:
        from quire.codec.ledger_metadata_messages import encode_text  # Google's library: nobody waits for it in vain.

        return header + encode_text(metadata, _secured(metadata))
    body = _encode_binary(metadata)
    return header + varint(len(body)) + body


def decode_ledger_metadata(data: bytes) -> LedgerMetadata:
    """The metadata that `data` holds. Raises `DamagedMetadata` for whatever Apache's readers would refuse."""
    if not data.startswith(_HEADER):
        raise DamagedMetadata(f"{_WHAT}: it should start with {_HEADER!r}, but starts with {shown(data[:40])}")
    match = _VERSION_LINE.match(data, len(_HEADER))
    if match is None:
        raise DamagedMetadata(f"{_WHAT}: no version number on the first line, but {shown(data[len(_HEADER) :][:40])}")
    from quire.codec.ledger_metadata_messages import decode_binary, decode_text

    version, body = int(match[1]), data[match.end() :]
    with reading(f"{_WHAT} of version {version}"):
        if version == 1:
            return ledger_metadata_v1.decode_body(body, f"{_WHAT} of version 1")
        if version == 2:
            return decode_text(body, f"{_WHAT} of version 2", first_line=2)
        if version == 3:
            what = f"{_WHAT} of version 3"
            return decode_binary(_delimited(body, what), what)
    raise DamagedMetadata(f"{_WHAT}: format version {version} is unknown; 1, 2 and 3 exist")


def _encode_binary(metadata: LedgerMetadata) -> bytes:
    """The bytes of version 3's message. Every append to a new segment waits for them, so they are written by hand."""
    password, digest = _secured(metadata)
    closed = metadata.state is LedgerState.CLOSED
    fields = [
        number_field(_WRITE_QUORUM, metadata.quorum.write),
        number_field(_ENSEMBLE, metadata.quorum.ensemble),
        number_field(_LENGTH, metadata.length if closed else 0),
        number_field(_LAST_ENTRY, metadata.last_entry_id if closed else -1),  # Absent, it would be read as 0.
        number_field(_STATE, metadata.state.value),
    ]
    for fragment in metadata.fragments:
        members = b"".join(text_field(_MEMBER, bookie) for bookie in fragment.bookies)
        fields.append(bytes_field(_FRAGMENT, members + number_field(_FIRST_ENTRY, fragment.first_entry_id)))
    fields.append(number_field(_DIGEST, digest.value))
    fields.append(bytes_field(_PASSWORD, password))
    fields.append(number_field(_ACK_QUORUM, metadata.quorum.ack))
    if metadata.ctime_ms is not None:
        fields.append(number_field(_CTIME, metadata.ctime_ms))
    for key, value in metadata.custom.items():
        fields.append(bytes_field(_CUSTOM, text_field(_KEY, key) + bytes_field(_VALUE, value)))
    fields.append(number_field(_CTOKEN, metadata.ctoken))  # Only here: see `ledger_metadata_messages`.
    return b"".join(fields)


def _secured(metadata: LedgerMetadata) -> tuple[bytes, DigestType]:
    """What every writer has stored since passwords are. Raises `InvalidArgument`."""
    if metadata.password is None or metadata.digest is None:
        raise InvalidArgument(
            f"a ledger without password and digest type cannot be written in format version {metadata.format_version}",
            hint="Such a ledger, left by a very old writer, can only be read; Apache's programs cannot change it.",
        )
    return metadata.password, metadata.digest


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
