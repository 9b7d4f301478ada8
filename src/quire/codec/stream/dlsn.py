"""DLSNs as bytes and as text: how subscribers' positions are stored, and how programs hand them on.

    version 1   01 LSSN (8) entry id (8) slot id (8)
    version 0   00 LSSN (8) entry id (8) slot id (8), then zeros up to 200 bytes

Numbers are signed, most significant byte first. Text is the base64 of these bytes. Version 0 is read and never written;
its length is an old mistake of counting bits for bytes.
"""

import base64
import binascii
import struct
from struct import Struct
from typing import Final

from quire.codec.damage import shown
from quire.codec.digest import Buffer
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import DLSN

DLSN_BYTES: Final = 25

_VERSION: Final = 1
_BYTES_OF_VERSION: Final = {0: 200, _VERSION: DLSN_BYTES}
_FORM = Struct(">Bqqq")


def encode_dlsn(dlsn: DLSN) -> bytes:
    """`dlsn` as version 1."""
    try:
        return _FORM.pack(_VERSION, *dlsn)
    except struct.error as error:
        raise InvalidArgument(f"{dlsn} does not fit into 64 bits a number", dlsn=dlsn) from error


def decode_dlsn(data: Buffer) -> DLSN:
    """The DLSN that `data` holds, in either version. Raises `DamagedMetadata`."""
    if not data or _BYTES_OF_VERSION.get(data[0]) != len(data):
        raise DamagedMetadata(f"a DLSN of {len(data)} bytes should not begin with {shown(bytes(data[:1]))}")
    return DLSN(*_FORM.unpack_from(data)[1:])


def encode_dlsn_text(dlsn: DLSN) -> str:
    """`dlsn` as 36 characters."""
    return base64.b64encode(encode_dlsn(dlsn)).decode()


def decode_dlsn_text(text: str) -> DLSN:
    """The DLSN that `text` spells, in either version. Raises `DamagedMetadata`."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: what is not ASCII.
        raise DamagedMetadata(f"a DLSN should be base64, but is {shown(text)}") from error
    return decode_dlsn(data)
