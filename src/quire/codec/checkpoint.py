"""The checkpoint file: how far a bookie's journals are in its ledger storage. Written anew as a whole each time.

    magic `QuireC02` | index position u64 | number of journals u32 | for each: file id u64, offset u64, group number u64
    | crc32c u32

Everything in a journal before the place it names is durable in entry logs and index, and the index is at least at the
position. A bookie whose index is behind it has lost part of its disk. The journals are in the order of the cookie.
"""

from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

from quire.errors import DamagedJournal

_MAGIC: Final = b"QuireC02"
_HEAD: Final = Struct(">8sQI")
_PLACE: Final = Struct(">QQQ")
_CRC: Final = Struct(">I")


class JournalPlace(NamedTuple):
    file_id: int
    offset: int
    group_number: int


class Checkpoint(NamedTuple):
    index_position: int
    journals: tuple[JournalPlace, ...]


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    content = _HEAD.pack(_MAGIC, checkpoint.index_position, len(checkpoint.journals))
    content += b"".join(_PLACE.pack(*place) for place in checkpoint.journals)
    return content + _CRC.pack(google_crc32c.value(content))


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Raises `DamagedJournal`: without its checkpoint nobody knows where the journal's replay must begin."""
    content, crc = data[: -_CRC.size], data[-_CRC.size :]
    if len(content) < _HEAD.size or _CRC.unpack(crc)[0] != google_crc32c.value(content):
        raise DamagedJournal("the checkpoint fails its checksum")
    magic, index_position, count = _HEAD.unpack_from(content)
    if magic != _MAGIC or len(content) != _HEAD.size + count * _PLACE.size:
        raise DamagedJournal("the checkpoint is not one of this format")
    return Checkpoint(index_position, tuple(map(JournalPlace._make, _PLACE.iter_unpack(content[_HEAD.size :]))))
