"""Bugs that sinks could have, each as a patch around a simulation. Nothing of this is ever part of what is shipped."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from quire.codec.stream import restamping
from quire.codec.stream_metadata.sinks import SinkState, decode_staged
from quire.errors import MetadataOutcomeUnknown, NoSuchNode
from quire.metadata import ANY_VERSION, Delete
from quire.metadata.paths import join
from quire.stream import staging, staging_commit, staging_inline
from quire.stream.nodes import GuardedNodes
from quire.stream.staging_sinks import StoredSink
from tests.simulation.harness import Flaw, Patch
from tests.simulation.staging import clients
from tests.simulation.staging.workloads import WORKLOADS


def batches_that_are_not_recognised() -> Patch:
    """What the sink's node says of a batch is not looked at."""
    return patch.object(SinkState, "has", lambda self, batch: False)


@contextmanager
def tags_that_nobody_reads() -> Iterator[None]:
    """A batch whose entry was written, and its node not, is written again."""

    async def as_the_node_says(context: Any, nodes: Any, state: Any, sink: str, password: bytes) -> Any:
        return state

    with (
        patch.object(staging_commit, "caught_up", as_the_node_says),
        patch.object(staging_inline, "caught_up", as_the_node_says),
    ):
        yield


def sink_noted_too_late() -> Patch:
    """Small batches are appended though no node says from where on tags have to be read."""
    write = StoredSink.write

    def write_without_since(self: Any, state: Any) -> Any:
        return write(self, SinkState(state.query, state.batch, state.transactions, state.first, state.last))

    return patch.object(StoredSink, "write", write_without_since)


def discarded_without_a_mark() -> Patch:
    """The ledger goes first, and its node afterwards, whatever happened to it in between."""

    async def discard(context: Any, stream: str, names: Any, *, sink: str | None = None) -> int:
        paths = context.paths(stream)
        for name in list(names):
            try:
                node = await context.store.get(join(paths.staged, name))
                await context.ledgers.delete(decode_staged(node.data).ledger)
                await context.store.delete(join(paths.staged, name), expected=ANY_VERSION)
            except NoSuchNode:
                pass
        return 0

    return patch.object(clients, "discard", discard)


def published_in_whatever_version() -> Patch:
    """A staged node is deleted with the commit even if it was marked meanwhile."""
    return patch.object(staging_commit, "Delete", lambda path, _: Delete(path, ANY_VERSION))


def published_one_by_one() -> Patch:
    """Each segment appears in a transaction of its own."""
    publish = GuardedNodes.publish

    async def one_by_one(self: Any, completed: Any, ops: Any, proof: Any) -> None:
        for each in completed[:-1]:
            await publish(self, [each], ops[:0] or [ops[0]], proof)
            ops = [type(ops[0])(ops[0].path, ops[0].data, ANY_VERSION), *ops[1:]] if len(ops) else ops
        await publish(self, completed[-1:], ops, proof)

    return patch.object(GuardedNodes, "publish", one_by_one)


def merged_in_parts() -> Patch:
    """Of the ledgers that are copied into one, the last is left out."""
    few = staging_commit._few

    def some(staged: Any) -> Any:
        return [group[: max(1, len(group) - 1)] for group in few(staged)]

    return patch.object(staging_commit, "_few", some)


def merged_with_the_places_that_records_had() -> Patch:
    """Copied records keep the positions that they had in their own ledgers."""
    stamp = restamping.restamped

    def in_place(entry: bytes, *, position: int, txid: int | None) -> Any:
        return stamp(entry, position=1, txid=txid)

    return patch.object(staging, "restamped", in_place)


def aborted_though_it_is_published() -> Patch:
    """An answer to a commit is lost, so the batch is aborted, and what it names is deleted: it is in the stream."""
    commit = staging_commit.commit_staged

    async def commit_or_delete(context: Any, stream: str, batch: Any, staged: Any, *args: Any, **options: Any) -> Any:
        done = await commit(context, stream, batch, staged, *args, **options)
        if context.runtime.rng.bytes(1)[0] % 4:
            return done
        for each in staged:
            await context.ledgers.delete(each.ledger)
        raise MetadataOutcomeUnknown("the answer of the commit is lost (planted)")

    return patch.object(clients, "commit_staged", commit_or_delete)


def ledgers_that_nobody_names() -> Patch:
    """The node of a staged ledger is deleted as soon as the ledger is sealed: who is to find it then?"""
    stage = staging.stage

    class _Stage:
        def __init__(self, context: Any, stream: str, *args: Any) -> None:
            self._context, self._stream = context, stream
            self._inner = stage(context, stream, *args)

        async def __aenter__(self) -> Any:
            self._staging = await self._inner.__aenter__()
            return self._staging

        async def __aexit__(self, *exc_info: Any) -> Any:
            result = await self._inner.__aexit__(*exc_info)
            if self._staging.segment is not None:
                path = join(self._context.paths(self._stream).staged, self._staging.segment.node)
                await staging.settle_gone(self._context.store, path)
            return result

    return patch.object(clients, "stage", _Stage)


FLAWS = [
    Flaw(batches_that_are_not_recognised, WORKLOADS["staging/crashes"], 10),
    Flaw(tags_that_nobody_reads, WORKLOADS["staging/inline"], 30),
    Flaw(sink_noted_too_late, WORKLOADS["staging/inline"], 30),
    Flaw(discarded_without_a_mark, WORKLOADS["staging/swept"], 30),
    Flaw(published_in_whatever_version, WORKLOADS["staging/swept"], 30),
    Flaw(published_one_by_one, WORKLOADS["staging/crashes"], 10),
    Flaw(merged_in_parts, WORKLOADS["staging/merged"], 10),
    Flaw(merged_with_the_places_that_records_had, WORKLOADS["staging/merged"], 10),
    Flaw(aborted_though_it_is_published, WORKLOADS["staging/lost_answers"], 60),
    Flaw(ledgers_that_nobody_names, WORKLOADS["staging/calm"], 10),
]
