"""The under-replication tree: which ledgers lack replicas, who repairs them, who is the auditor.

    underreplication                                        below the ledgers root
    ├── LAYOUT                                              text   `BASIC`, version 1
    ├── ledgers/hhhh/hhhh/hhhh/hhhh/urL<id>                 text   missing replicas; h is the ledger id in hexadecimal
    ├── locks/urL<id>                                       text   who repairs it; ephemeral
    ├── disable                                             empty; while it exists nothing is repaired
    ├── lostBookieRecoveryDelay                             decimal seconds
    ├── auditorelection/V_<sequence>                        text   a candidate; ephemeral, the lowest one is the auditor
    └── checkallledgersctime and two more                   binary when a check last ended

Paths here are relative to `underreplication`. All texts are protobuf's text format.
"""

import re
from typing import Final

from quire.codec.damage import INT32_MAX, INT64_MAX, check_text, decimal, shown, utf8
from quire.codec.messages import read_binary, read_text, write_binary, write_text
from quire.codec.pb import bookkeeper_metadata_pb2 as pb
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import LEDGER_ID_MAX, LedgerId, ledger_id
from quire.values import dataclass

UNDERREPLICATION: Final = "underreplication"
LAYOUT: Final = "LAYOUT"
LEDGERS: Final = "ledgers"
LOCKS: Final = "locks"
DISABLE: Final = "disable"
LOST_BOOKIE_RECOVERY_DELAY: Final = "lostBookieRecoveryDelay"
AUDITOR_ELECTION: Final = "auditorelection"
VOTE_PREFIX: Final = "V_"
CHECK_ALL_LEDGERS_CTIME: Final = "checkallledgersctime"
PLACEMENT_POLICY_CHECK_CTIME: Final = "placementpolicycheckctime"
REPLICAS_CHECK_CTIME: Final = "replicascheckctime"

_LEAF = re.compile("urL([0-9]{10,19})", re.ASCII)
_VOTE = re.compile("V_([0-9]{10,19})", re.ASCII)


# --- Paths


def mark_path(ledger: LedgerId) -> str:
    """Where the mark of an under-replicated ledger is: `ledgers/0000/0000/0000/3039/urL0000012345`."""
    digits = f"{ledger_id(ledger):016x}"
    groups = [digits[start : start + 4] for start in range(0, 16, 4)]
    return "/".join([LEDGERS, *groups, _leaf(ledger)])


def lock_path(ledger: LedgerId) -> str:
    """Where the lock of whoever repairs the ledger is: `locks/urL0000012345`."""
    return f"{LOCKS}/{_leaf(ledger_id(ledger))}"


def ledger_of_mark(path: str) -> LedgerId:
    """The ledger whose `mark_path` is `path`. Raises `DamagedMetadata` if none is."""
    ledger = _ledger_of_leaf(path)
    if mark_path(ledger) != path:
        raise DamagedMetadata(f"{shown(path)} is not where the mark of an under-replicated ledger belongs", path=path)
    return ledger


def ledger_of_lock(path: str) -> LedgerId:
    """The ledger whose `lock_path` is `path`. Raises `DamagedMetadata` if none is."""
    ledger = _ledger_of_leaf(path)
    if lock_path(ledger) != path:
        raise DamagedMetadata(f"{shown(path)} is not where the lock of an under-replicated ledger belongs", path=path)
    return ledger


def vote_number(name: str) -> int | None:
    """The place of the vote `V_<sequence>` in the queue, lowest first; None if `name` is no vote."""
    match = _VOTE.fullmatch(name)
    return int(match[1]) if match else None


def _leaf(ledger: LedgerId) -> str:
    return f"urL{ledger:010d}"


def _ledger_of_leaf(path: str) -> LedgerId:
    match = _LEAF.fullmatch(path.rpartition("/")[2])
    if match is None or int(match[1]) > LEDGER_ID_MAX:
        raise DamagedMetadata(f"{shown(path)} does not end in the name of an under-replicated ledger", path=path)
    return LedgerId(int(match[1]))


# --- Bodies


@dataclass(frozen=True, slots=True)
class UnderreplicatedLedger:
    """A mark. Replicas are plain text: they name bookies that are gone, and Apache's readers check nothing here."""

    replicas: tuple[str, ...]
    ctime_ms: int | None = None

    def __post_init__(self) -> None:
        for replica in self.replicas:
            check_text(replica)
        _check_time(self.ctime_ms or 0)


@dataclass(frozen=True, slots=True)
class ReplicationLayout:
    """How the tree is laid out. Only the default exists; programs refuse to work with any other."""

    type: str = "BASIC"
    version: int = 1

    def __post_init__(self) -> None:
        check_text(self.type)
        if not -INT32_MAX - 1 <= self.version <= INT32_MAX:
            raise InvalidArgument(f"version {self.version} does not fit into 32 bits")


def encode_mark(mark: UnderreplicatedLedger) -> bytes:
    return write_text(pb.UnderreplicatedLedgerFormat(replica=mark.replicas, ctime=mark.ctime_ms))


def decode_mark(data: bytes) -> UnderreplicatedLedger:
    message = read_text(data, pb.UnderreplicatedLedgerFormat, "under-replicated ledger")
    return UnderreplicatedLedger(tuple(message.replica), message.ctime if message.HasField("ctime") else None)


def encode_replication_layout(layout: ReplicationLayout) -> bytes:
    return write_text(pb.LedgerRereplicationLayoutFormat(type=layout.type, version=layout.version))


def decode_replication_layout(data: bytes) -> ReplicationLayout:
    message = read_text(data, pb.LedgerRereplicationLayoutFormat, "under-replication layout")
    return ReplicationLayout(message.type, message.version)


def encode_lock(holder: str | None) -> bytes:
    """`holder` is the host that repairs the ledger, for people to read; None if it does not know its own name."""
    check_text(holder or "")
    return write_text(pb.LockDataFormat(bookieId=holder))


def decode_lock(data: bytes) -> str | None:
    message = read_text(data, pb.LockDataFormat, "under-replication lock")
    return message.bookieId if message.HasField("bookieId") else None


def encode_vote(candidate: str | None) -> bytes:
    """`candidate` is the bookie id of the process that wants to be the auditor."""
    check_text(candidate or "")
    return write_text(pb.AuditorVoteFormat(bookieId=candidate))


def decode_vote(data: bytes) -> str | None:
    message = read_text(data, pb.AuditorVoteFormat, "auditor vote")
    return message.bookieId if message.HasField("bookieId") else None


def encode_check_time(ctime_ms: int) -> bytes:
    """For all three `*ctime` nodes: their messages differ in the field's name, which is not stored."""
    _check_time(ctime_ms)
    return write_binary(pb.CheckAllLedgersFormat(checkAllLedgersCTime=ctime_ms))


def decode_check_time(data: bytes) -> int | None:
    message = read_binary(data, pb.CheckAllLedgersFormat, "time of the last check")
    return message.checkAllLedgersCTime if message.HasField("checkAllLedgersCTime") else None


def encode_recovery_delay(delay_s: int) -> bytes:
    if not 0 <= delay_s <= INT32_MAX:
        raise InvalidArgument(f"a delay of {delay_s} s cannot be stored", hint="Use 0 to 2147483647 seconds.")
    return b"%d" % delay_s


def decode_recovery_delay(data: bytes) -> int:
    what = "lost bookie recovery delay"
    return decimal(utf8(data, what), what, low=-INT32_MAX - 1, high=INT32_MAX)


def _check_time(ctime_ms: int) -> None:
    if not -INT64_MAX - 1 <= ctime_ms <= INT64_MAX:
        raise InvalidArgument(f"time {ctime_ms} does not fit into 64 bits")
