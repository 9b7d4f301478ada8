"""What is counted of each request, and the rules that all of them share."""

from typing import Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument, QuireError
from quire.proxy.counted_calls import code_of
from quire.proxy.write.metrics import WriteProxyMetrics
from quire.proxy.write.submissions import Submission
from quire.rpc.serving.transport import Caller
from quire.runtime import Clock
from quire.telemetry.events import logger

_REDIRECT: Final = pb.Code.Name(pb.NOT_OWNER)
_log = logger("proxy.write")


class WriteCounts:
    """Counts what is answered, and refuses what is for another namespace."""

    def __init__(self, metrics: WriteProxyMetrics, clock: Clock, namespace: str) -> None:
        self._metrics, self._clock, self.namespace = metrics, clock, namespace

    def check_namespace(self, name: str) -> None:
        """One process serves one namespace. An empty name stands for it."""
        if name not in ("", self.namespace):
            raise InvalidArgument(
                f"this proxy serves namespace {self.namespace!r}, not {name!r}", hint="Use that name, or none."
            )

    def on_end(self, rpc: str, code: str) -> None:
        self._metrics.request(rpc, code)
        if code == _REDIRECT:
            self._metrics.redirects.value += 1

    def on_batch(self, rpc: str, submission: Submission | None, error: QuireError | None) -> None:
        """A batch is answered. `submission` is None if it never came that far."""
        self.on_end(rpc, code_of(error))
        if submission is None or error is not None:
            return
        metrics, now_s = self._metrics, self._clock.monotonic()
        if not submission.is_duplicate:
            metrics.records.value += submission.count
            metrics.bytes.value += submission.size_bytes
            metrics.queue_seconds.observe(submission.handed_over_s - submission.begun_s)
            metrics.storage_seconds.observe(now_s - submission.handed_over_s)
        metrics.total_seconds.observe(now_s - submission.begun_s)

    def on_violation(self, caller: Caller, error: QuireError) -> None:
        self._metrics.violations.add()
        _log.warning("call.violation", error=str(error), **caller.facts())
