"""Ledger metadata as protobuf's message: version 2 altogether, and version 3 as it is read.

Google's library is behind this. Whoever only writes version 3, as a program does until its first append, does without.
"""

from quire.codec.messages import read_binary, read_text, write_text
from quire.codec.pb import bookkeeper_metadata_pb2 as pb
from quire.errors import DamagedMetadata
from quire.types import BookieId, DigestType, EntryId, Fragment, LedgerMetadata, LedgerState, Quorum


def encode_text(metadata: LedgerMetadata, secured: tuple[bytes, DigestType]) -> bytes:
    """Version 2. Without the creation token: readers before 4.10 refuse a name that they do not know."""
    return write_text(message_of(metadata, secured))


def decode_text(body: bytes, what: str, *, first_line: int) -> LedgerMetadata:
    return _metadata(read_text(body, pb.LedgerMetadataFormat, what, first_line=first_line), what, 2)


def decode_binary(body: bytes, what: str) -> LedgerMetadata:
    return _metadata(read_binary(body, pb.LedgerMetadataFormat, what), what, 3)


def message_of(metadata: LedgerMetadata, secured: tuple[bytes, DigestType]) -> pb.LedgerMetadataFormat:
    """All but the creation token."""
    password, digest = secured
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
        digestType=pb.LedgerMetadataFormat.DigestType.Name(digest.value),
        password=password,
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
