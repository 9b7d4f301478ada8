"""The checkpoint file: how far a bookie's journal is in its ledger storage. Written anew as a whole each time.

    magic `QuireC01` | journal file id u64 | offset u64 | group number u64 | index position u64 | crc32c u32

Everything in the journal before the place it names is durable in entry logs and index, and the index is at least at the
position. A bookie whose index is behind it has lost part of its disk.
"""

from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

from quire.errors import DamagedJournal

_MAGIC: Final = b"QuireC01"
_CHECKPOINT: Final = Struct(">8sQQQQ")
_CRC: Final = Struct(">I")


class Checkpoint(NamedTuple):
    file_id: int
    offset: int
    group_number: int
    index_position: int


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    content = _CHECKPOINT.pack(_MAGIC, *checkpoint)
    return content + _CRC.pack(google_crc32c.value(content))


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Raises `DamagedJournal`: without its checkpoint nobody knows where the journal's replay must begin."""
    if len(data) != _CHECKPOINT.size + _CRC.size:
        raise DamagedJournal(f"a checkpoint has {_CHECKPOINT.size + _CRC.size} bytes, this one {len(data)}")
    content = data[: _CHECKPOINT.size]
    magic, *numbers = _CHECKPOINT.unpack(content)
    if magic != _MAGIC or _CRC.unpack_from(data, _CHECKPOINT.size)[0] != google_crc32c.value(content):
        raise DamagedJournal("the checkpoint fails its checksum")
    return Checkpoint(*numbers)
