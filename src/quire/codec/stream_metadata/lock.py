"""The members of a lock: one node for each client that waits for it, numbered by the store; the lowest one owns it.

    member_<client id, URL-encoded>_s<session id>_<10-digit sequence>           data: the client id, UTF-8

Invariant: a name tells its owner only if it is exactly what that owner would have written. A client id with `_` in it
breaks the name into too many parts; then the node's data and its session tell the owner, for Apache's clients too.
"""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote_plus, unquote_plus

from quire.codec.damage import INT32_MAX, INT64_MAX, check_text, utf8
from quire.errors import InvalidArgument
from quire.values import dataclass

_PREFIX: Final = "member"
_SEQUENCE = re.compile("-?[0-9]{1,10}", re.ASCII)  # The store's counter has 32 bits and wraps around.
_SESSION = re.compile("s *(-?[0-9]{1,19})", re.ASCII)
_BEHIND_ALL: Final = INT32_MAX + 1


@dataclass(frozen=True, slots=True)
class LockOwner:
    """A client in one session. After the session ended, the same client is somebody else."""

    client_id: str
    session_id: int

    def __post_init__(self) -> None:
        check_text(self.client_id)
        if not -INT64_MAX - 1 <= self.session_id <= INT64_MAX:
            raise InvalidArgument(f"session id {self.session_id} does not fit into 64 bits")


def member_prefix(owner: LockOwner) -> str:
    """The name of a member as it is asked for: the store appends the sequence number.

    Apache's clients cannot read a session id of fewer than 10 characters in it. ZooKeeper issues none.
    """
    client = quote_plus(owner.client_id, safe="*").replace("~", "%7E")  # As HTML forms do: they keep only `.-*_`.
    return f"{_PREFIX}_{client}_s{owner.session_id:10d}_"


def member_owner(name: str) -> LockOwner | None:
    """Who made the member of this name, or None if only the node itself can tell."""
    parts = name.split("_")
    session = _SESSION.fullmatch(parts[2]) if len(parts) == 4 else None
    if session is None:
        return None
    try:
        owner = LockOwner(unquote_plus(parts[1], errors="strict"), int(session[1]))
    except (UnicodeDecodeError, InvalidArgument):
        return None
    return owner if name.startswith(member_prefix(owner)) else None


def member_sequence(name: str) -> int | None:
    """The member's place in the queue; None if the name does not end in a number. Such a member never owns the lock."""
    tail = name.rpartition("_")[2]
    number = int(tail) if _SEQUENCE.fullmatch(tail) else _BEHIND_ALL
    return number if -INT32_MAX - 1 <= number <= INT32_MAX else None


def members_in_order(names: Iterable[str]) -> list[str]:
    """The queue of a lock, its owner first and whatever bears no number last."""

    def place(name: str) -> int:
        sequence = member_sequence(name)
        return _BEHIND_ALL if sequence is None else sequence

    return sorted(names, key=place)


def encode_member(owner: LockOwner) -> bytes:
    return owner.client_id.encode()


def decode_member(data: bytes, session_id: int) -> LockOwner:
    """The owner of a member whose name does not tell: `session_id` is the node's ephemeral owner."""
    return LockOwner(utf8(data, "lock member"), session_id)
