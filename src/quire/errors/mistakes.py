"""The caller's mistakes: the call is wrong in itself."""

from quire.errors.base import QuireError


class CallerMistake(QuireError):
    """The call is wrong in itself; repeating it unchanged fails again."""


class InvalidArgument(CallerMistake):
    """A value is out of range or malformed."""


class InvalidUri(InvalidArgument):
    """A URI does not parse, or names something that its scheme cannot serve."""

    hint = "Write zk+hierarchical://host:2181;host2:2181/ledgers, etcd://host:2379/ledgers, sqlite:./m.db or memory:."


class InvalidPath(InvalidArgument):
    """A metadata path is not absolute, has empty, `.` or `..` parts, or contains forbidden characters."""

    hint = "Paths look like /ledgers/available: they start with one slash and no part is empty, '.' or '..'."


class InvalidName(InvalidArgument):
    """A bookie id or another name breaks the rules that Apache's programs enforce."""


class RequestTooLarge(CallerMistake):
    """More data, or more operations, than one metadata request may carry."""

    hint = "Metadata holds small facts: keep bulk data in ledgers, and split large transactions."


class DuplicateEntryId(CallerMistake):
    """An entry of this id was written before, or is being written."""

    hint = "Each entry id of an advanced ledger is used once."


class RecordTooLarge(CallerMistake):
    """A record, or a record set as a whole, is larger than one entry takes. Nothing was sent."""

    hint = "A record takes 1,040,364 bytes at most: split the payload, or keep it elsewhere and append where it is."


class TxidOutOfOrder(CallerMistake):
    """A record has a lower txid than one before it in its stream, or one that no record may have. Nothing was sent."""

    hint = "Use txids that never decrease, or none: then each record gets the time in milliseconds."


class HandleClosed(CallerMistake):
    """The writer or reader was closed before this call."""

    hint = "Use it inside its `async with` block."


class UnknownScheme(CallerMistake):
    """No installed package registered a metadata driver for this scheme."""


class MissingExtra(CallerMistake):
    """The driver is part of Quire, but the library that it needs is not installed."""


class StoreClosed(CallerMistake):
    """The store was closed before this call."""
