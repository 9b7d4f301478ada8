"""The response codes of the bookie protocol: one name, two numbers, one meaning.

Both versions say the same things under different numbers. Everything above this package speaks of `Status`; the values
are those of version 3, where a code is an enumerator, and `v2` is the number in version 2.
"""

import enum
from typing import Final, Self

from quire.errors import ProtocolViolation


class Status(enum.IntEnum):
    """What a bookie made of a request. `v2_answer` is the number to send to a client of version 2.

    It differs from `v2` in one place: Java clients know no 107, and close the connection over it.
    """

    v2: int
    v2_answer: int
    meaning: str

    def __new__(cls, v3: int, v2: int, meaning: str) -> Self:
        status = int.__new__(cls, v3)
        status._value_ = v3
        status.v2 = v2
        status.v2_answer = 101 if v2 == 107 else v2
        status.meaning = meaning
        return status

    EOK = 0, 0, "done"
    ENOLEDGER = 402, 1, "the bookie has nothing of this ledger"
    ENOENTRY = 403, 2, "the bookie has the ledger, and not this entry"
    EBADREQ = 404, 100, "the request makes no sense to the bookie"
    EIO = 501, 101, "the bookie could not read or write its disks"
    EUA = 502, 102, "the master key is wrong or missing, or the connection is not authenticated"
    EBADVERSION = 503, 103, "the bookie does not speak this version of the protocol"
    EFENCED = 504, 104, "the ledger is fenced: only recovery may add to it"
    EREADONLY = 505, 105, "the bookie takes no more writes"
    ETOOMANYREQUESTS = 506, 106, "the bookie's queues are full"
    EUNKNOWNLEDGERSTATE = 507, 107, "the bookie lost data and cannot tell what it had of this ledger"


_BY_V2: Final = {status.v2: status for status in Status}
_BY_V3: Final = {status.value: status for status in Status}


def status_of_v2(number: int) -> Status:
    """Raises `ProtocolViolation` for a number without a meaning."""
    status = _BY_V2.get(number)
    if status is None:
        raise ProtocolViolation(f"response code {number} does not exist in version 2", code=number)
    return status


def status_of_v3(number: int) -> Status:
    """Raises `ProtocolViolation` for a number without a meaning."""
    status = _BY_V3.get(number)
    if status is None:
        raise ProtocolViolation(f"status {number} does not exist in version 3", code=number)
    return status
