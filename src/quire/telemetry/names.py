"""Every metric that Quire exposes, declared once: its name, its kind, its labels, and what it means.

Names that begin with `bookie_`, `bookkeeper_server_`, `bookkeeper_client_` or `replication_` are those of Apache
BookKeeper, so that dashboards and alerts made for it go on working: operations are summaries in milliseconds there.
Names that begin with `quire_` are ours and follow Prometheus's conventions: seconds and bytes in the name, `_total` on
counters.
"""

from enum import Enum, auto
from typing import Final

from quire.errors import invariant
from quire.values import dataclass


class Kind(Enum):
    """What a metric is, and so how it is exposed."""

    COUNTER = auto()  # Only grows.
    GAUGE = auto()  # Goes up and down.
    HISTOGRAM = auto()  # Latencies in seconds, in cumulative buckets.
    OPERATION = auto()  # Latencies in milliseconds, as a summary with quantiles, split by success.


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric as the world sees it."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    histogram: "Declared | None" = None
    """Where an operation is exposed a second time, in seconds: quantiles of several bookies cannot be summed up."""

    operation: str = ""
    """What this operation is called there, as the value of the label `operation`."""


DECLARED: Final[dict[str, Declared]] = {}  # By name, without `_total`.


def _declare(declared: Declared) -> Declared:
    family = declared.name.removesuffix("_total")  # OpenMetrics names a counter so, and knows each name once.
    invariant(family not in DECLARED, "a metric is declared twice", name=declared.name)
    DECLARED[family] = declared
    return declared


def _counter(name: str, help: str, *labels: str) -> Declared:
    return _declare(Declared(name, Kind.COUNTER, help, labels))


def _gauge(name: str, help: str, *labels: str) -> Declared:
    return _declare(Declared(name, Kind.GAUGE, help, labels))


def _histogram(name: str, help: str, *labels: str) -> Declared:
    return _declare(Declared(name, Kind.HISTOGRAM, help, labels))


def _operation(name: str, help: str, *labels: str) -> Declared:
    return _declare(Declared(name, Kind.OPERATION, f"{help}, in milliseconds", labels))


def _request(name: str, operation: str, help: str) -> Declared:
    name, help = f"bookkeeper_server_{name}", f"{help}, in milliseconds"
    return _declare(Declared(name, Kind.OPERATION, help, histogram=REQUEST_SECONDS, operation=operation))


# --- Requests: from the moment they were read to their answer

REQUEST_SECONDS = _histogram("quire_bookie_request_seconds", "Every kind of request", "operation", "success")
ADD_ENTRY_REQUEST = _request("ADD_ENTRY_REQUEST", "add_entry", "Adding an entry")
READ_ENTRY_REQUEST = _request("READ_ENTRY_REQUEST", "read_entry", "Reading an entry, or a batch of them")
READ_ENTRY_FENCE_REQUEST = _request("READ_ENTRY_FENCE_REQUEST", "fence_read", "Fencing a ledger and reading")
READ_ENTRY_LONG_POLL_REQUEST = _request(
    "READ_ENTRY_LONG_POLL_REQUEST", "long_poll_read", "Reading as soon as the LAC moves, the wait included"
)
WRITE_LAC_REQUEST = _request("WRITE_LAC_REQUEST", "write_lac", "Storing an explicit LAC")
READ_LAC_REQUEST = _request("READ_LAC_REQUEST", "read_lac", "Reading the LAC")
FORCE_LEDGER_REQUEST = _request("FORCE_LEDGER_REQUEST", "force_ledger", "Making a ledger's entries durable")
GET_BOOKIE_INFO_REQUEST = _request("GET_BOOKIE_INFO_REQUEST", "bookie_info", "Telling free and total space")
GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST = _request(
    "GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST", "list_entries", "Listing the entries of a ledger"
)
ADD_ENTRY_REJECTED = _counter("bookkeeper_server_ADD_ENTRY_REJECTED", "Adds refused because too many were under way")
READ_ENTRY_REJECTED = _counter("bookkeeper_server_READ_ENTRY_REJECTED", "Reads refused because too many were under way")
ADD_ENTRY_IN_PROGRESS = _gauge("bookkeeper_server_ADD_ENTRY_IN_PROGRESS", "Adds under way now")
READ_ENTRY_IN_PROGRESS = _gauge("bookkeeper_server_READ_ENTRY_IN_PROGRESS", "Reads under way now")
CONNECTIONS = _gauge("quire_bookie_connections", "Client connections open now")
CONNECTIONS_ACCEPTED_TOTAL = _counter("quire_bookie_connections_accepted_total", "Client connections accepted")
CONNECTIONS_REFUSED_TOTAL = _counter(
    "quire_bookie_connections_refused_total", "Client connections closed at once because there were too many"
)

# --- The bookie and its storage

SERVER_STATUS = _gauge("bookie_SERVER_STATUS", "1 writable, 0 read-only, -1 not registered")
WRITE_BYTES = _counter("bookie_WRITE_BYTES", "Bytes of entries accepted")
READ_BYTES = _counter("bookie_READ_BYTES", "Bytes of entries read")
BOOKIE_ADD_ENTRY = _operation("bookie_BOOKIE_ADD_ENTRY", "Storing an entry durably")
BOOKIE_FORCE_LEDGER = _counter("bookie_BOOKIE_FORCE_LEDGER", "Times that a ledger was forced")
STAGE_SECONDS = _histogram("quire_bookie_stage_seconds", "Time spent in one stage of the bookie", "stage")

JOURNAL_ADD_ENTRY = _operation(
    "bookie_journal_JOURNAL_ADD_ENTRY", "From a record's queueing to its durability", "journalIndex"
)
JOURNAL_SYNC = _operation("bookie_journal_JOURNAL_SYNC", "One flush of a journal's disk", "journalIndex")
JOURNAL_QUEUE_SIZE = _gauge("bookie_journal_JOURNAL_QUEUE_SIZE", "Records waiting to be written", "journalIndex")
JOURNAL_WRITE_BYTES = _counter("bookie_journal_JOURNAL_WRITE_BYTES", "Bytes written to a journal", "journalIndex")

WRITE_CACHE_SIZE = _gauge("bookie_write_cache_size", "Bytes in the write cache")
READ_CACHE_SIZE = _gauge("bookie_read_cache_size", "Bytes in the read cache")
THROTTLED_WRITE_REQUESTS = _counter("bookie_throttled_write_requests", "Writes that waited because the cache was full")
REJECTED_WRITE_REQUESTS = _counter("bookie_rejected_write_requests", "Writes refused because the cache stayed full")
FLUSH = _operation("bookie_flush", "One checkpoint: the write cache moved into entry logs and index")

LEDGER_WRITABLE_DIRS = _gauge("bookie_ledger_writable_dirs", "Ledger folders with room for entries")
LEDGER_NUM_DIRS = _gauge("bookie_ledger_num_dirs", "Ledger folders configured")
DISK_FREE_BYTES = _gauge("quire_bookie_disk_free_bytes", "Free space, as far as this bookie may use it", "folder")
DISK_TOTAL_BYTES = _gauge("quire_bookie_disk_total_bytes", "Size of the disk that the folder is on", "folder")

# --- Garbage collection and compaction

ACTIVE_ENTRY_LOG_TOTAL = _gauge("bookie_ACTIVE_ENTRY_LOG_TOTAL", "Entry logs on disk")
ACTIVE_ENTRY_LOG_SPACE_BYTES = _gauge(
    "bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES", "Bytes in entry logs that belong to ledgers which still exist"
)
ENTRY_LOG_SPACE_BYTES = _gauge("bookie_ENTRY_LOG_SPACE_BYTES", "Bytes in entry logs, garbage included")
ACTIVE_LEDGER_TOTAL = _gauge("bookie_ACTIVE_LEDGER_TOTAL", "Ledgers that this bookie holds entries of")
DELETED_LEDGER_TOTAL = _counter("bookie_DELETED_LEDGER_TOTAL", "Ledgers removed by garbage collection")
MINOR_COMPACTION_TOTAL = _counter("bookie_MINOR_COMPACTION_TOTAL", "Minor compactions run")
MAJOR_COMPACTION_TOTAL = _counter("bookie_MAJOR_COMPACTION_TOTAL", "Major compactions run")
RECLAIMED_DELETION_SPACE_BYTES = _counter(
    "bookie_RECLAIMED_DELETION_SPACE_BYTES", "Bytes freed by deleting entry logs that held nothing but garbage"
)
RECLAIMED_COMPACTION_SPACE_BYTES = _counter(
    "bookie_RECLAIMED_COMPACTION_SPACE_BYTES", "Bytes freed by rewriting entry logs without their garbage"
)
RECLAIM_FAILED_TO_DELETE = _counter("bookie_RECLAIM_FAILED_TO_DELETE", "Entry logs that could not be deleted")

# --- Damage: anything but zero here deserves a look

DAMAGED_ENTRIES_TOTAL = _counter("quire_bookie_damaged_entries_total", "Reads that met an entry which does not check")
JOURNAL_DAMAGES_TOTAL = _counter(
    "quire_bookie_journal_damages_total", "Places in the journal that were written whole and cannot be read"
)
DISK_ERRORS_TOTAL = _counter("quire_bookie_disk_errors_total", "Reads and writes that a disk refused")
PROTOCOL_VIOLATIONS_TOTAL = _counter(
    "quire_bookie_protocol_violations_total", "Connections closed because their bytes made no sense"
)

# --- A client of ledgers

LEDGER_CREATE = _operation("bookkeeper_client_LEDGER_CREATE", "Creating a ledger")
LEDGER_OPEN = _operation("bookkeeper_client_LEDGER_OPEN", "Opening a ledger, its recovery included")
LEDGER_DELETE = _operation("bookkeeper_client_LEDGER_DELETE", "Deleting a ledger's metadata")
LEDGER_RECOVER = _operation("bookkeeper_client_LEDGER_RECOVER", "Sealing a ledger from under its writer")
NUM_ENSEMBLE_CHANGE = _counter("bookkeeper_client_NUM_ENSEMBLE_CHANGE", "Times that failed bookies were replaced")
SPECULATIVE_READ_COUNT = _counter(
    "bookkeeper_client_SPECULATIVE_READ_COUNT", "Reads sent to another bookie because the first was slow"
)
LEDGER_APPEND_SECONDS = _histogram("quire_ledger_append_seconds", "From an entry's sending to its ack quorum")
LEDGER_APPENDED_ENTRIES_TOTAL = _counter("quire_ledger_appended_entries_total", "Entries acknowledged")
LEDGER_APPENDED_BYTES_TOTAL = _counter("quire_ledger_appended_bytes_total", "Payload bytes of acknowledged entries")
LEDGER_APPEND_FAILURES_TOTAL = _counter(
    "quire_ledger_append_failures_total", "Writers that broke off and left appends without an answer"
)
LEDGER_WINDOW_WAITS_TOTAL = _counter("quire_ledger_window_waits_total", "Appends that waited for room in the window")
LEDGER_WRITERS = _gauge("quire_ledger_writers", "Ledgers being written now")
LEDGER_IN_FLIGHT_ENTRIES = _gauge("quire_ledger_in_flight_entries", "Entries sent that wait for their ack quorum")
LEDGER_READ_ENTRIES_TOTAL = _counter("quire_ledger_read_entries_total", "Entries read")
LEDGER_READ_BYTES_TOTAL = _counter("quire_ledger_read_bytes_total", "Payload bytes of entries read")
LEDGER_READ_FAILURES_TOTAL = _counter("quire_ledger_read_failures_total", "Entries that no bookie could give")
LEDGER_DAMAGED_COPIES_TOTAL = _counter(
    "quire_ledger_damaged_copies_total", "Copies of entries that a bookie could not give intact, to readers"
)
LEDGER_LAC_LAG_ENTRIES = _gauge(
    "quire_ledger_lac_lag_entries", "Confirmed entries that the slowest follower has not read yet"
)
LEDGER_BOOKIE_ERRORS_TOTAL = _counter("quire_ledger_bookie_errors_total", "Requests and connections that failed")
LEDGER_BOOKIES_QUARANTINED = _gauge("quire_ledger_bookies_quarantined", "Bookies that get no new ledgers for a while")
LEDGER_CONNECTIONS = _gauge("quire_ledger_connections", "Connections to bookies open now")
LEDGER_UNSENT_BYTES = _gauge("quire_ledger_unsent_bytes", "Bytes that wait to be sent to bookies")
LEDGER_PLACEMENT_FAILURES_TOTAL = _counter(
    "quire_ledger_placement_failures_total", "Ensembles chosen that break the placement policy's rule"
)

# --- Streams

STREAM_APPEND_SECONDS = _histogram(
    "quire_stream_append_seconds", "From a call's records being queued to their being durable"
)
STREAM_APPENDED_RECORDS_TOTAL = _counter("quire_stream_appended_records_total", "Records acknowledged")
STREAM_APPENDED_BYTES_TOTAL = _counter(
    "quire_stream_appended_bytes_total", "Bytes of acknowledged records, headers included"
)
STREAM_FAILED_RECORDS_TOTAL = _counter(
    "quire_stream_failed_records_total", "Records that were refused, or whose fate is unknown"
)
STREAM_CONTROL_RECORDS_TOTAL = _counter(
    "quire_stream_control_records_total", "Control records sent to make others visible"
)
STREAM_FENCED_WRITERS_TOTAL = _counter("quire_stream_fenced_writers_total", "Writers that another one took over from")
STREAM_LOST_LOCKS_TOTAL = _counter("quire_stream_lost_locks_total", "Writers' locks that were lost with their session")
STREAM_BEGUN_SEGMENTS_TOTAL = _counter("quire_stream_begun_segments_total", "Segments begun")
STREAM_COMPLETED_SEGMENTS_TOTAL = _counter(
    "quire_stream_completed_segments_total", "Segments completed, recovered ones included"
)
STREAM_RECOVERED_SEGMENTS_TOTAL = _counter(
    "quire_stream_recovered_segments_total", "Segments completed that another writer left"
)
STREAM_PURGED_SEGMENTS_TOTAL = _counter(
    "quire_stream_purged_segments_total", "Segments deleted by retention, or when told to"
)
STREAM_ARCHIVED_SEGMENTS_TOTAL = _counter(
    "quire_stream_archived_segments_total", "Segments copied to cold storage, and recorded"
)
STREAM_DROPPED_SEGMENTS_TOTAL = _counter(
    "quire_stream_dropped_segments_total", "Archived segments whose ledgers were deleted"
)
STREAM_RESTORED_SEGMENTS_TOTAL = _counter(
    "quire_stream_restored_segments_total", "Cold segments that were given ledgers again"
)
STREAM_READ_RECORDS_TOTAL = _counter("quire_stream_read_records_total", "Records given to readers")
STREAM_READ_BYTES_TOTAL = _counter("quire_stream_read_bytes_total", "Bytes of entries that readers decoded")
STREAM_DAMAGED_ENTRIES_TOTAL = _counter(
    "quire_stream_damaged_entries_total", "Entries that readers skipped because no replica could be read"
)
STREAM_WRITERS = _gauge("quire_stream_writers", "Streams open for writing now")
STREAM_READERS = _gauge("quire_stream_readers", "Readers open now")

# --- Read proxies

READ_PROXY_READ_ENTRIES_TOTAL = _counter("quire_read_proxy_read_entries_total", "Entries read from storage")
READ_PROXY_READ_BYTES_TOTAL = _counter("quire_read_proxy_read_bytes_total", "Bytes of entries read from storage")
READ_PROXY_SENT_ENTRIES_TOTAL = _counter(
    "quire_read_proxy_sent_entries_total",
    "Entries sent to readers: divided by those read it is how many readers share a read",
)
READ_PROXY_SENT_BYTES_TOTAL = _counter("quire_read_proxy_sent_bytes_total", "Bytes sent to readers")
READ_PROXY_MESSAGES_TOTAL = _counter("quire_read_proxy_messages_total", "Messages sent to readers")
READ_PROXY_READERS = _gauge("quire_read_proxy_readers", "Readers open now, by where they read", "mode")
READ_PROXY_COLD_READS = _gauge(
    "quire_read_proxy_cold_reads", "Requests to cold storage that are under way, or wait for their turn", "state"
)
READ_PROXY_BEHIND_BYTES = _gauge(
    "quire_read_proxy_behind_bytes", "How far the slowest reader has fallen behind a tail that it was at"
)
READ_PROXY_PARKED_FETCHES = _gauge("quire_read_proxy_parked_fetches", "Fetches that wait for entries now")
READ_PROXY_LANES = _gauge("quire_read_proxy_lanes", "Lanes that are open now", "pool")
READ_PROXY_LANES_STARTED_TOTAL = _counter("quire_read_proxy_lanes_started_total", "Lanes started")
READ_PROXY_LANE_HITS_TOTAL = _counter(
    "quire_read_proxy_lane_hits_total", "Times that a reader found its place on a lane that was there", "pool"
)
READ_PROXY_CACHE_BYTES = _gauge("quire_read_proxy_cache_bytes", "Bytes kept for readers to share", "pool")
READ_PROXY_CACHE_EVICTED_TOTAL = _counter(
    "quire_read_proxy_cache_evicted_total", "Chunks dropped because there was no room", "pool"
)
READ_PROXY_CACHE_EXPIRED_TOTAL = _counter(
    "quire_read_proxy_cache_expired_total", "Chunks dropped because nobody needed them any more", "pool"
)
READ_PROXY_DROPPED_OUT_TOTAL = _counter(
    "quire_read_proxy_dropped_out_total", "Readers that were too slow for the window that they were in"
)
READ_PROXY_REQUESTS_TOTAL = _counter(
    "quire_read_proxy_requests_total", "Calls that are over, by what became of them", "rpc", "code"
)
READ_PROXY_TAIL_LAG_ENTRIES = _gauge(
    "quire_read_proxy_tail_lag_entries", "Confirmed entries that the slowest tail has not read from storage yet"
)
READ_PROXY_SESSION_EXPIRIES_TOTAL = _counter(
    "quire_read_proxy_session_expiries_total", "Times that the metadata session ended"
)
READ_PROXY_STREAM_READERS = _gauge("quire_read_proxy_stream_readers", "Readers of one stream, if set so", "stream")
READ_PROXY_STREAM_LAG_ENTRIES = _gauge(
    "quire_read_proxy_stream_lag_entries", "Confirmed entries that its tail has not read yet, if set so", "stream"
)
READ_PROXY_STREAM_CACHE_BYTES = _gauge(
    "quire_read_proxy_stream_cache_bytes", "Bytes of one stream that are kept, if set so", "stream"
)
READ_PROXY_REFUSED_TOTAL = _counter("quire_read_proxy_refused_total", "Calls refused because of a limit")
READ_PROXY_COMMITS_TOTAL = _counter("quire_read_proxy_commits_total", "Positions that subscribers committed")
READ_PROXY_COMMIT_WRITES_TOTAL = _counter(
    "quire_read_proxy_commit_writes_total", "Positions written: several commits may be one"
)

# --- Serving by gRPC

SERVING_REFUSED_TOTAL = _counter(
    "quire_serving_refused_total", "Connections, calls and messages of clients that were not taken", "cause"
)

PROXY_LOOP_LAG_S = _gauge("quire_proxy_loop_lag_s", "The latest that the event loop was in the last ten seconds")

# --- The HTTP gateway

GATEWAY_ANSWERS_TOTAL = _counter("quire_gateway_answers_total", "Requests answered", "status")
GATEWAY_UNDER_WAY = _gauge("quire_gateway_under_way", "Requests under way now", "kind")
GATEWAY_BODY_BYTES = _gauge("quire_gateway_body_bytes", "Bytes of requests that are kept now")
GATEWAY_REFUSED_TOTAL = _counter("quire_gateway_refused_total", "Requests refused because of a limit", "kind")
GATEWAY_WRITERS = _gauge("quire_gateway_writers", "Streams that the gateway has open for writing")
GATEWAY_BAD_CONNECTIONS_TOTAL = _counter(
    "quire_gateway_bad_connections_total",
    "Connections that sent what is no HTTP, did not take their answers, or were slow when there were too many",
    "cause",
)

# --- Write proxies

WRITE_PROXY_REQUESTS_TOTAL = _counter("quire_write_proxy_requests_total", "Requests answered", "rpc", "code")
WRITE_PROXY_WRITE_SECONDS = _histogram(
    "quire_write_proxy_write_seconds", "A batch: waiting for its stream, in storage, and both", "stage"
)
WRITE_PROXY_RECORDS_TOTAL = _counter("quire_write_proxy_records_total", "Records stored")
WRITE_PROXY_BYTES_TOTAL = _counter("quire_write_proxy_bytes_total", "Payload bytes stored")
WRITE_PROXY_DUPLICATES_TOTAL = _counter("quire_write_proxy_duplicates_total", "Records that were stored before")
WRITE_PROXY_REDIRECTS_TOTAL = _counter("quire_write_proxy_redirects_total", "Requests sent on to another proxy")
WRITE_PROXY_ACQUIRE_SECONDS = _histogram("quire_write_proxy_acquire_seconds", "Becoming the owner of a stream")
WRITE_PROXY_ACQUIRE_FAILURES_TOTAL = _counter(
    "quire_write_proxy_acquire_failures_total", "Streams that could not be acquired", "cause"
)
WRITE_PROXY_STREAMS_CACHED = _gauge("quire_write_proxy_streams_cached", "Streams that the proxy has to do with")
WRITE_PROXY_STREAMS_OWNED = _gauge("quire_write_proxy_streams_owned", "Streams that it owns")
WRITE_PROXY_STREAMS = _gauge("quire_write_proxy_streams", "Streams by state", "state")
WRITE_PROXY_STATUS = _gauge("quire_write_proxy_status", "100 takes streams, 200 serves those it has, 300 is down")
WRITE_PROXY_REQUESTS_PER_S = _gauge("quire_write_proxy_requests_per_s", "Writes a second, over the last minute")
WRITE_PROXY_BYTES_PER_S = _gauge("quire_write_proxy_bytes_per_s", "Payload bytes a second, over the last minute")
WRITE_PROXY_STREAM_REQUESTS_PER_S = _gauge(
    "quire_write_proxy_stream_requests_per_s", "Writes a second to one stream, if set so", "stream"
)
WRITE_PROXY_STREAM_BYTES_PER_S = _gauge(
    "quire_write_proxy_stream_bytes_per_s", "Payload bytes a second to one stream, if set so", "stream"
)
WRITE_PROXY_STREAM_PENDING_OPERATIONS = _gauge(
    "quire_write_proxy_stream_pending_operations", "Operations that wait for one stream, if set so", "stream"
)
WRITE_PROXY_LIMITED_TOTAL = _counter(
    "quire_write_proxy_limited_total", "Writes beyond a limit: refused if it is a hard one", "level", "kind"
)
WRITE_PROXY_PENDING_OPERATIONS = _gauge(
    "quire_write_proxy_pending_operations", "Operations that wait for a stream, or in storage"
)
WRITE_PROXY_IN_FLIGHT_BYTES = _gauge("quire_write_proxy_in_flight_bytes", "Payload bytes on their way to storage")
WRITE_PROXY_SERVICE_TIMEOUTS_TOTAL = _counter(
    "quire_write_proxy_service_timeouts_total", "Streams given up because storage did not answer"
)
WRITE_PROXY_SESSION_EXPIRIES_TOTAL = _counter(
    "quire_write_proxy_session_expiries_total", "Times that the metadata session ended"
)
WRITE_PROXY_UNLOADS_TOTAL = _counter("quire_write_proxy_unloads_total", "Streams given up because nobody used them")
WRITE_PROXY_SNAPSHOTS_TOTAL = _counter("quire_write_proxy_snapshots_total", "Times that producers were written down")
WRITE_PROXY_CALLS = _gauge("quire_write_proxy_calls", "Write calls that are open")
WRITE_PROXY_VIOLATIONS_TOTAL = _counter(
    "quire_write_proxy_violations_total", "Write calls ended because the client broke the rules"
)
WRITE_PROXY_IS_BALANCER = _gauge("quire_write_proxy_is_balancer", "1 if it is the one that moves streams by load")
WRITE_PROXY_BALANCE_LOOKS_TOTAL = _counter(
    "quire_write_proxy_balance_looks_total", "Times that it looked, as the balancer, at what all proxies have to do"
)
WRITE_PROXY_BALANCE_MOVES_TOTAL = _counter(
    "quire_write_proxy_balance_moves_total", "Streams that it had moved, as the balancer, or could not", "outcome"
)
WRITE_PROXY_BALANCE_SPREAD = _gauge(
    "quire_write_proxy_balance_spread", "What the busiest proxy has to do, over the mean, when the balancer last looked"
)

# --- Autorecovery

AUTORECOVERY_IS_AUDITOR = _gauge("quire_autorecovery_is_auditor", "1 in the process that is the cluster's auditor")
AUTORECOVERY_LOST_BOOKIES = _gauge(
    "quire_autorecovery_lost_bookies", "Bookies that ledgers name and that do not live, when the auditor last looked"
)
AUTORECOVERY_SHUT_OUT_TOTAL = _counter(
    "quire_autorecovery_shut_out_total", "Open ledgers recovered because their writers did not replace a lost bookie"
)
AUDITOR_ELECTION_ATTEMPTS = _counter("replication_auditor_election_attempts", "Votes cast to become the auditor")
AUDITOR_NUM_UNDER_REPLICATED_LEDGERS = _counter(
    "replication_auditor_NUM_UNDER_REPLICATED_LEDGERS", "Ledgers marked because they lack copies"
)
AUDITOR_NUM_BOOKIE_AUDITS_DELAYED = _counter(
    "replication_auditor_NUM_BOOKIE_AUDITS_DELAYED", "Times that a lost bookie was waited for"
)
AUDITOR_AUDIT_BOOKIES_TIME = _operation(
    "replication_auditor_AUDIT_BOOKIES_TIME", "Finding the ledgers of lost bookies, and marking them"
)
AUDITOR_CHECK_ALL_LEDGERS_TIME = _operation(
    "replication_auditor_CHECK_ALL_LEDGERS_TIME", "Asking all bookies for entries of all their fragments"
)
AUDITOR_PLACEMENT_POLICY_CHECK_TIME = _operation(
    "replication_auditor_PLACEMENT_POLICY_CHECK_TIME", "Counting ledgers that break the placement policy"
)
AUDITOR_REPLICAS_CHECK_TIME = _operation(
    "replication_auditor_REPLICAS_CHECK_TIME", "Counting the copies of all entries"
)
AUDITOR_NUM_LEDGERS_CHECKED = _counter(
    "replication_auditor_NUM_LEDGERS_CHECKED", "Ledgers whose fragments were checked"
)
AUDITOR_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY = _gauge(
    "replication_auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY",
    "Closed ledgers that break the placement policy, when it was last checked",
)
AUDITOR_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY = _gauge(
    "replication_auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY",
    "Closed ledgers with an entry that no bookie lists, when copies were last counted",
)
AUDITOR_NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY = _gauge(
    "replication_auditor_NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY",
    "The same for fewer copies than the ack quorum",
)
AUDITOR_NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY = _gauge(
    "replication_auditor_NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY",
    "The same for fewer copies than the write quorum",
)
WORKER_REREPLICATE = _operation("replication_replication_worker_rereplicate", "Working on one marked ledger")
WORKER_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED = _counter(
    "replication_replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED", "Ledgers of which fragments were repaired"
)
WORKER_NUM_ENTRIES_READ = _counter("replication_replication_worker_NUM_ENTRIES_READ", "Entries read to be copied")
WORKER_NUM_BYTES_READ = _counter("replication_replication_worker_NUM_BYTES_READ", "Payload bytes of these")
WORKER_NUM_ENTRIES_WRITTEN = _counter(
    "replication_replication_worker_NUM_ENTRIES_WRITTEN", "Entries that all their new bookies acknowledged"
)
WORKER_NUM_BYTES_WRITTEN = _counter(
    "replication_replication_worker_NUM_BYTES_WRITTEN", "Payload bytes acknowledged, each copy counted"
)
WORKER_NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION = _counter(
    "replication_replication_worker_NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION",
    "Times that a repair stopped at an entry which no bookie could give",
)
WORKER_NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER = _counter(
    "replication_replication_worker_NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER",
    "Times that a ledger was left alone for a while because it could not be repaired",
)
