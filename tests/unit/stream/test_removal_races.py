"""A deletion that loses its lock half way: what a new owner wrote is not its business."""

import pytest
from tests.support.streams.cluster import SETTINGS, StreamCluster
from tests.unit.stream.test_writer import play

from quire.errors import MetadataOutcomeUnknown, SessionExpired
from quire.metadata import ANY_VERSION, Delete, Written
from quire.metadata.driver import Op
from quire.stream.context import StreamContext
from quire.stream.ownership import open_stream_writer
from quire.stream.removal import delete_stream


def test_records_of_a_new_owner_survive_a_deletion_that_lost_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: the session ends with the first write of the deletion, and another client takes the stream over."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        lock = context.paths("s").lock
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"old")
        async with cluster.context("deleter") as mine:
            real, has_ended = mine.store.transaction, False

            async def transaction(*ops: Op) -> list[Written | None]:
                nonlocal has_ended
                if has_ended or not any(isinstance(op, Delete) for op in ops):
                    return await real(*ops)
                has_ended = True
                for name in (await context.store.children(lock)).names:
                    await context.store.delete(f"{lock}/{name}", expected=ANY_VERSION)
                async with open_stream_writer(context, "s", SETTINGS) as writer:
                    await writer.append(b"new")
                raise SessionExpired("the session has ended")

            monkeypatch.setattr(mine.store, "transaction", transaction)
            with pytest.raises(MetadataOutcomeUnknown, match="deleted in part"):
                await delete_stream(mine, "s", lock_timeout_s=5)
        last = (await cluster.nodes(context, "s").all_segments())[-1].segment
        async with context.ledgers.open(last.ledger_id) as ledger:
            assert b"new" in b"".join([payload async for _, payload in ledger.read()])

    play(act)
