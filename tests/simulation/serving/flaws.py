"""Bugs that the serving tier could have, each as a patch around a simulation.

Nothing of this is ever part of what is shipped. `FLAWS` says for each which workload meets it, and within how many
seeds. `acknowledges_what_is_sent` is one of streams: here it is a proxy that tells its clients too early.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from quire.protocol.producers import ProducerTable
from quire.protocol.write_order import StreamOrder
from quire.proxy.client.appends import BatchRules
from quire.proxy.client.lane import Lane
from quire.proxy.client.remote_source import RemoteSource
from quire.proxy.read.lane import Lane as ReadLane
from quire.proxy.write import owned_stream
from quire.proxy.write.answers import unavailable
from quire.proxy.write.producer_records import Scanned
from quire.proxy.write.serving import ServingStream
from tests.simulation.serving.plan import Plan
from tests.simulation.serving.workloads import WORKLOADS
from tests.simulation.streams.flaws import acknowledges_what_is_sent

Patch = AbstractContextManager[object]


# --- The write proxy


def producers_are_forgotten() -> Patch:
    """Whoever acquires a stream does not look what its producers have stored."""

    async def read_producers(*_: object) -> Scanned:
        return Scanned(0, 0)

    return patch.object(owned_stream, "read_producers", read_producers)


def snapshots_alone_are_read() -> Patch:
    """Whoever acquires a stream restores the last snapshot, and passes over what came behind it."""
    return patch.object(ProducerTable, "replay", lambda *_, **__: None)


def nothing_fails_behind() -> Patch:
    """Batches behind one that failed are appended."""
    return patch.object(StreamOrder, "may_append", lambda *_: True)


def says_that_nothing_was_stored() -> Patch:
    """Of batches in flight it is said that they were refused, when the writer fails."""
    settled = ServingStream._on_settled

    def on_settled(self: Any, submission: Any, skip: int, call: Any) -> None:
        if call.error is None or submission not in self.in_flight:
            settled(self, submission, skip, call)
            return
        self._take_out(submission)
        self.fail(call.error)
        submission.refuse(unavailable(submission.stream, call.error))

    return patch.object(ServingStream, "_on_settled", on_settled)


# --- The read proxy


def lane_skips_a_run_at_a_border() -> Patch:
    """A read proxy loses the first entries of each segment but the first."""
    add = ReadLane._add

    def add_unless_first(self: Any, run: Any) -> None:
        before = self.__dict__.setdefault("before", run.lssn)
        if run.entries:
            self.before = run.lssn
        add(self, run._replace(entries=[], size_bytes=0) if run.entries and before != run.lssn else run)

    return patch.object(ReadLane, "_add", add_unless_first)


# --- The client


@contextmanager
def unknown_is_sent_again() -> Iterator[None]:
    """A client without producer ids sends again what may have been stored."""
    init = BatchRules.__init__

    def repeat(self: Any, **rules: Any) -> None:
        init(self, **{**rules, "may_repeat": True})

    with patch.object(BatchRules, "__init__", repeat):
        yield


def only_the_first_is_sent_again_in_order() -> Patch:
    """What failed behind the first batch is sent again behind everything else."""

    rewind = Lane.rewind

    def rewind_backwards(self: Any, *, is_final: bool) -> None:
        rewind(self, is_final=is_final)
        if len(self._again) > 1:
            self._again.rotate(-1)

    return patch.object(Lane, "rewind", rewind_backwards)


def reader_goes_on_one_entry_late() -> Patch:
    """At another read proxy a reader goes on behind the next entry."""
    on_failure = RemoteSource._on_failure

    def failure(self: Any, address: str, error: Any) -> None:
        on_failure(self, address, error)
        if self._at is not None:
            self._at = self._at.next_entry()

    return patch.object(RemoteSource, "_on_failure", failure)


class Flaw(NamedTuple):
    """A bug, where it should be met, and within how many seeds."""

    plant: Callable[[], Patch]
    workload: Plan
    seeds_max: int

    @property
    def name(self) -> str:
        return self.plant.__name__


FLAWS = [
    Flaw(producers_are_forgotten, WORKLOADS["crash"], 60),
    Flaw(snapshots_alone_are_read, WORKLOADS["crash"], 60),
    Flaw(nothing_fails_behind, WORKLOADS["limits"], 60),
    Flaw(acknowledges_what_is_sent, WORKLOADS["storage"], 60),
    Flaw(says_that_nothing_was_stored, WORKLOADS["rivals"], 60),
    Flaw(lane_skips_a_run_at_a_border, WORKLOADS["readers"], 60),
    Flaw(unknown_is_sent_again, WORKLOADS["cold_start"], 80),
    Flaw(only_the_first_is_sent_again_in_order, WORKLOADS["move"], 60),
    Flaw(reader_goes_on_one_entry_late, WORKLOADS["readers"], 60),
]
