"""Unavailable: not possible now, perhaps later."""

from quire.errors.base import Outcome, QuireError


class Unavailable(QuireError):
    """Not possible now; the same call may succeed later."""

    retryable = True


class MetadataUnavailable(Unavailable):
    """The metadata store did not answer in time. Nothing was written."""

    hint = "Check that the servers named in the URI run and can be reached, then retry."


class MetadataOutcomeUnknown(Unavailable):
    """The connection broke, or the deadline passed, while a write was under way. It may have been stored."""

    outcome = Outcome.UNKNOWN
    hint = "Read the node before writing again."


class NotEnoughBookies(Unavailable):
    """Fewer bookies live, and are allowed, than the ledger needs."""

    hint = "Start more bookies, or ask for a smaller ensemble. `quire metadata show` lists those that live."


class RecoveryFailed(Unavailable):
    """Where the ledger ends could not be told. Its writer may be shut out by now; anybody may try again."""

    outcome = Outcome.UNKNOWN
    hint = "Bring back the bookies of the ledger's last ensemble, then open it again."


class BookieUnavailable(Unavailable):
    """The bookie cannot be reached. Nothing was sent to it."""

    hint = "Check that the bookie runs and that its address can be reached from here."


class BookieBusy(Unavailable):
    """The bookie's queues are full, and it refused."""

    hint = "Send less at a time, or give the cluster more bookies."


class BookieOutcomeUnknown(Unavailable):
    """The connection broke, or the deadline passed, before the answer to a request that was sent. It may be done."""

    outcome = Outcome.UNKNOWN
    hint = "Send the same bytes again, or replace the bookie: adding an entry twice changes nothing."


class BookieFailed(Unavailable):
    """The bookie could not read or write its disks, or could not make sense of the request."""

    outcome = Outcome.UNKNOWN
    hint = "Use another bookie, and look at this one's log."


class AppendCancelled(Unavailable):
    """Records before these failed, or no segment could be begun for them: they were never sent."""

    hint = "Look what became of the records before them, then append these again."


class ProxyUnreachable(Unavailable):
    """The proxy cannot be reached. Nothing was sent to it."""

    hint = "Check that the proxy runs and that its address can be reached from here."


class ProxyOutcomeUnknown(Unavailable):
    """The connection broke, or the deadline passed, before the proxy's answer. The call may have happened."""

    outcome = Outcome.UNKNOWN
    hint = "Look whether it happened before calling again; writers with a producer id may simply send again."


class ProxyFailed(Unavailable):
    """Something went wrong inside the proxy."""

    outcome = Outcome.UNKNOWN
    hint = "Look at the proxy's log."


class ProxyDraining(Unavailable):
    """The proxy is being stopped, and takes nothing new."""

    hint = "Use another proxy. Clients of `quire.connect` do so by themselves."


class StreamUnavailable(Unavailable):
    """The proxy cannot serve the stream now: it is being opened or closed, or failed here a moment ago."""

    hint = "Try again in a moment, or at another proxy."


class TooManyStreams(Unavailable):
    """The proxy serves as many streams as it may, or has as much to do as it should."""

    hint = "Use another proxy, or start more of them."


class OverCapacity(Unavailable):
    """A limit of requests or bytes is reached. Nothing was done."""

    hint = "Send less, or wait: `retry_after_ms` in `facts` says how long. Limits are the proxy's settings."


class ReaderIdle(Unavailable):
    """No record came for longer than the reader was told to wait."""

    hint = "Look whether the stream still has a writer, then go on reading from the same position."


class QueryFailed(Unavailable):
    """Spark could not finish a query, or a job, for reasons of its own."""

    hint = "Run it again; --conf spark.log.level=WARN shows what Spark has to say."


class DiskFull(Unavailable):
    """No room is left for what has to be written."""

    hint = "Free space on that disk, or move the folder to a larger one; then start again."


class ColdUnavailable(Unavailable):
    """Cold storage cannot be reached, or did not answer in time."""

    hint = "Check the address, the network and the credentials of the cold storage, then try again."
