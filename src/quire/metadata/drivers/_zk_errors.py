"""kazoo's errors in the words of `quire.errors`: the one place where they are translated.

What matters most is whether a failed write may have happened. The server's own refusals say that it did not; a lost
connection, a missed deadline and every error that we do not know leave it open.
"""

from typing import Final

from kazoo.exceptions import (
    AuthFailedError,
    BadArgumentsError,
    BadVersionError,
    ConnectionLoss,
    EphemeralOnLocalSessionError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    NotReadOnlyCallError,
    OperationTimeoutError,
    QuotaExceededError,
    RequestTimeoutError,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    SessionMovedError,
    ThrottledOpError,
    UnimplementedError,
)

from quire.errors import (
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    ParentIsEphemeral,
    QuireError,
    Refused,
    SessionExpired,
    VersionConflict,
)
from quire.metadata.driver import Create, Op
from quire.metadata.paths import parent_of

# A read that ends so may be asked again: nobody refused it, it only went astray.
ASTRAY: Final = (
    ConnectionLoss,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    ThrottledOpError,
)


class Failures:
    """Makes the errors of one driver; they name its servers and its deadline."""

    def __init__(self, servers: tuple[str, ...], timeout_s: float) -> None:
        self._servers, self._timeout_s = servers, timeout_s

    def unavailable(self, path: str, *, reason: str = "") -> MetadataUnavailable:
        names = ", ".join(self._servers) + (f" ({reason})" if reason else "")
        return MetadataUnavailable(
            f"no ZooKeeper server answered within {self._timeout_s:g} s: {names}", path=path, servers=self._servers
        )

    def outcome_unknown(self, path: str) -> MetadataOutcomeUnknown:
        names = ", ".join(self._servers)
        return MetadataOutcomeUnknown(
            f"ZooKeeper did not say whether {path!r} was written: {names}", path=path, servers=self._servers
        )

    def translated(self, error: KazooException, path: str, op: Op | None = None) -> QuireError:
        """The error to raise `from` kazoo's. `op` is the write that failed, None for a read."""
        match error:
            case NoNodeError() if isinstance(op, Create):
                parent = parent_of(path)
                return NoSuchNode(f"{path!r} cannot be created: there is no {parent!r}", path=path, parent=parent)
            case NoNodeError():
                return NoSuchNode(f"there is no metadata node {path!r}", path=path, parent=parent_of(path))
            case NodeExistsError():
                return NodeExists(f"the metadata node {path!r} exists already", path=path)
            case NotEmptyError():
                return NodeNotEmpty(f"the metadata node {path!r} has children", path=path)
            case NoChildrenForEphemeralsError():
                return ParentIsEphemeral(f"the parent of {path!r} is ephemeral", path=path, parent=parent_of(path))
            case BadVersionError():
                expected = None if op is None or isinstance(op, Create) else op.expected
                return VersionConflict(f"{path!r} is not at version {expected}", path=path, expected=expected)
            case SessionExpiredError():
                return SessionExpired(f"the session ended before {path!r} was written", path=path)
            case NoAuthError() | AuthFailedError() | InvalidACLError() | SessionClosedRequireSaslError():
                return Refused(
                    f"ZooKeeper does not let this client work on {path!r}",
                    hint="Quire sends no credentials: give the node and its parent an ACL open to world:anyone.",
                    path=path,
                )
            case QuotaExceededError():
                return Refused(
                    f"a ZooKeeper quota forbids to write {path!r}", hint="Raise the quota with setquota.", path=path
                )
            case BadArgumentsError() | EphemeralOnLocalSessionError() | UnimplementedError():
                return Refused(
                    f"this ZooKeeper server does not accept the request for {path!r}: {error.__doc__}",
                    hint="Check the server's version and its configuration.",
                    path=path,
                )
            case SessionMovedError() | ThrottledOpError() | NotReadOnlyCallError():
                return self.unavailable(path, reason=str(error) or type(error).__name__)  # The server did nothing.
        return self.unavailable(path) if op is None else self.outcome_unknown(path)
