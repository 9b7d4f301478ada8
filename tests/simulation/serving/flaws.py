"""Bugs that the serving tier could have, each as a patch around a simulation.

Nothing of this is ever part of what is shipped. `FLAWS` says for each which workload meets it, and within how many
seeds. `acknowledges_what_is_sent` is one of streams: here it is a proxy that tells its clients too early.
"""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from quire.protocol.balancing import Orders, plan_moves
from quire.protocol.producers import ProducerTable
from quire.protocol.write_order import StreamOrder
from quire.proxy.client.appends import BatchRules
from quire.proxy.client.lane import Lane
from quire.proxy.client.remote_source import RemoteSource
from quire.proxy.read.lane import Lane as ReadLane
from quire.proxy.read.reading import Reading
from quire.proxy.write import balancer, owned_stream
from quire.proxy.write.answers import unavailable
from quire.proxy.write.owned_stream import OwnedStream
from quire.proxy.write.producer_records import Scanned
from quire.proxy.write.proxy import WriteProxy
from quire.proxy.write.serving import ServingStream
from quire.proxy.write.stream_table import StreamTable
from tests.simulation.harness import Flaw, Patch
from tests.simulation.serving.workloads import WORKLOADS
from tests.simulation.streams.flaws import acknowledges_what_is_sent

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


def an_earlier_balancer_is_obeyed() -> Patch:
    """A proxy moves streams for whoever once was the balancer."""
    return patch.object(Orders, "obeys", lambda *_: True)


def streams_never_rest() -> Patch:
    """The balancer moves a stream that has just come."""

    def plan(proxies: Any, settings: Any) -> Any:
        return plan_moves(proxies, replace(settings, rest_s=0.0))

    return patch.object(balancer, "plan_moves", plan)


def a_plan_outlives_its_streams() -> Patch:
    """A stream that was given up, and acquired again, is moved by a plan from before that."""
    return patch.object(WriteProxy, "life_of", lambda *_: "")


def a_moved_stream_forgets_what_is_under_way() -> Patch:
    """What is in storage already when a stream is given up is said to be refused."""
    close = OwnedStream.close

    def closed(self: Any, refusing: Any = None) -> None:
        if self.serving is not None and refusing is not None:
            for submission in list(self.serving.in_flight):
                self.serving._take_out(submission)
                submission.refuse(refusing(submission))
        close(self, refusing)

    return patch.object(OwnedStream, "close", closed)


# --- The read proxy


def lane_skips_a_run_at_a_border() -> Patch:
    """A read proxy loses the first entries of each segment but the first."""
    add = ReadLane._add

    def add_unless_first(self: Any, run: Any, **how: Any) -> None:
        before = self.__dict__.setdefault("before", run.lssn)
        if run.entries:
            self.before = run.lssn
        add(self, run._replace(entries=[], size_bytes=0) if run.entries and before != run.lssn else run, **how)

    return patch.object(ReadLane, "_add", add_unless_first)


def what_is_handed_out_is_forgotten() -> Patch:
    """A read proxy goes on behind a message that no connection took."""
    offer = Reading._offer

    def offer_to_nobody(self: Any) -> bool:
        take, self._take = self._take, lambda _: True
        try:
            return offer(self)
        finally:
            self._take = take

    return patch.object(Reading, "_offer", offer_to_nobody)


# --- The client


def unknown_is_sent_again() -> Patch:
    """A client without producer ids sends again what may have been stored."""
    return patch.object(BatchRules, "may_repeat", property(lambda self: True, lambda self, value: None))


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


def takes_whatever_it_is_asked_for() -> Patch:
    """How many streams a proxy may own is looked at before it has the lock, and not after: others come in between."""
    return patch.object(StreamTable, "_on_acquired", lambda *_: None)


FLAWS = [
    Flaw(producers_are_forgotten, WORKLOADS["serving/crash"], 60),
    Flaw(snapshots_alone_are_read, WORKLOADS["serving/crash"], 60),
    Flaw(nothing_fails_behind, WORKLOADS["serving/limits"], 60),
    Flaw(acknowledges_what_is_sent, WORKLOADS["serving/storage"], 60),
    Flaw(says_that_nothing_was_stored, WORKLOADS["serving/rivals"], 60),
    Flaw(lane_skips_a_run_at_a_border, WORKLOADS["serving/readers"], 60),
    Flaw(what_is_handed_out_is_forgotten, WORKLOADS["serving/readers"], 60),
    Flaw(unknown_is_sent_again, WORKLOADS["serving/cold_start"], 80),
    Flaw(only_the_first_is_sent_again_in_order, WORKLOADS["serving/move"], 60),
    Flaw(reader_goes_on_one_entry_late, WORKLOADS["serving/readers"], 60),
    Flaw(takes_whatever_it_is_asked_for, WORKLOADS["serving/rush"], 60),
    Flaw(an_earlier_balancer_is_obeyed, WORKLOADS["serving/late_orders"], 120),
    Flaw(streams_never_rest, WORKLOADS["serving/balance"], 60),
    Flaw(a_plan_outlives_its_streams, WORKLOADS["serving/balance"], 60),
    Flaw(a_moved_stream_forgets_what_is_under_way, WORKLOADS["serving/balance"], 60),
]
