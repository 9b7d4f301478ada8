"""How large things may be, in Apache's numbers: what is larger, Apache's programs refuse to write.

An entry leaves 4 KiB of a megabyte for what bookies and the wire add to it, a record 4 KiB more. The limit of an entry
counts what goes into it before compression.

A byte of LZ4 stands for up to 255, and the smallest member of a record set is 4 of those. So what an entry becomes when
all its sets are taken apart has a limit, too: far above what programs write, Apache's client gathers 1 MiB for a set.
"""

from typing import Final

RECORD_HEADER_BYTES: Final = 20
RECORD_BYTES_MAX: Final = 1024 * 1024 - 8 * 1024  # With its header.
PAYLOAD_BYTES_MAX: Final = RECORD_BYTES_MAX - RECORD_HEADER_BYTES
MEMBER_BYTES_MAX: Final = RECORD_BYTES_MAX  # Of a record set; the set as a whole has to fit into a record as well.
MEMBER_COST_BYTES: Final = 64  # What a reader needs for a member besides its payload, about: it may be empty.

ENVELOPE_BYTES: Final = 13
ENTRY_BYTES_MAX: Final = 1024 * 1024 - 4 * 1024  # With its envelope.
RECORDS_BYTES_MAX: Final = ENTRY_BYTES_MAX - ENVELOPE_BYTES
EXPANDED_BYTES_MAX: Final = 64 * 1024 * 1024  # Of all sets of an entry before compression, with the cost of members.

POSITION_MAX: Final = 2**31 - 1

TXID_MAX: Final = 2**63 - 1  # Says that a stream has ended; no record of an application may have it.
INVALID_TXID: Final = -999
EMPTY_SEGMENT_TXID: Final = -99
