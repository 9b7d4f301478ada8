"""What a metadata backend implements: a versioned tree with sessions, in as few operations as possible.

The promises that every driver keeps are written in `quire.metadata.api` and checked by `tests/contract/metadata`.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Final, NewType, Protocol

from quire.values import dataclass

Version = NewType("Version", int)
SessionId = NewType("SessionId", int)

ANY_VERSION: Final = Version(-1)  # As an expectation: whatever is there. Every real version is 0 or more.


@dataclass(frozen=True, slots=True)
class Stat:
    """What a store knows of a node beside its data."""

    version: Version
    writes: int  # How often the data was written since the node was created, the creation included.
    created_ms: int | None  # None where the backend keeps no times.
    owner: SessionId | None  # The session whose end removes this node; None for persistent nodes.


@dataclass(frozen=True, slots=True)
class Node:
    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Children:
    """The names below a node, sorted. A listing of greater version is newer."""

    names: tuple[str, ...]
    version: Version


@dataclass(frozen=True, slots=True)
class Written:
    """What a create or a set left behind."""

    path: str  # With the number that a sequential node was given.
    version: Version
    writes: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node below an existing one. `sequential` appends a ten-digit number, growing in order of creation."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replace a node's data."""

    path: str
    data: bytes
    expected: Version


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node that has no children."""

    path: str
    expected: Version


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing; refuse the transaction unless the node exists with this version (`ANY_VERSION`: exists)."""

    path: str
    expected: Version


Op = Create | Set | Delete | Check


class Target(enum.Enum):
    """What a watch looks at."""

    NODE = enum.auto()  # The node's data, its creation and its deletion.
    CHILDREN = enum.auto()  # Which names are below it, and its own creation and deletion.


class SessionEvent(enum.Enum):
    SUSPENDED = enum.auto()  # The store cannot be reached; the session may or may not be alive.
    RESUMED = enum.auto()  # The store can be reached again; without EXPIRED before it, the session went on.
    EXPIRED = enum.auto()  # The session is over and its ephemeral nodes are gone. A new session begins by itself.


class Driver(Protocol):
    """What a backend implements. Arguments arrive checked; every call ends within the operation timeout.

    All methods and callbacks run on the event loop's thread. Errors are those of `quire.errors`, never a backend's own.
    """

    @property
    def session(self) -> SessionId:
        """The present session; another one after an expiry."""

    async def get(self, path: str) -> Node | None: ...

    async def stat(self, path: str) -> Stat | None: ...

    async def children(self, path: str) -> Children | None: ...

    async def commit(self, ops: Sequence[Op]) -> list[Written | None]:
        """Carry out all of `ops`, or raise what refused the first impossible one and change nothing.

        Later operations see earlier ones: a parent and its child may be created together. No path occurs twice, and
        a sequential create stands alone. The answer has one item for each operation, None for deletes and checks.
        """

    async def sync(self) -> None:
        """After this, reads show every write that anybody finished before the call."""

    async def settle(self) -> None:
        """After this, a write of this session that was sent, and whose answer was lost or not waited for, has happened
        or never will. Writes that are under way may go on.
        """

    async def watch(self, path: str, target: Target, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` after each change from now on, also when the node does not exist yet, and after each break
        during which a change may have been missed. Returns the function that ends the watch.
        """

    def listen(self, callback: Callable[[SessionEvent], None]) -> None:
        """Report session events. Called once, before anything else."""

    async def aclose(self) -> None:
        """End the session: its ephemeral nodes go at once if the store can be reached."""
