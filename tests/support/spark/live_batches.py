"""A reader that follows a stream of batches while they are written, and checks at once that it never meets half of one.

What it holds, all the time:
  InOrder   batches come by number, each once, and one is over before the next one begins: no loss, no duplicate.
  Listed    as soon as the first record of a batch is read, all segments that the batch is in are listed, unless all of
            it is one entry; and no listing ever shows records of completed segments that are no whole batches.
"""

import asyncio
import math
import threading
from itertools import accumulate
from typing import Any, Self

import quire
from tests.support.spark.batch_driver import size_of
from tests.support.waiting import eventually

_STOP_S = 30.0


class BatchesInOrder:
    """Takes records one by one, and says which batch begins."""

    def __init__(self) -> None:
        self.whole = 0  # Batches that were read to the end.
        self._left: set[int] = set()

    @property
    def is_between_batches(self) -> bool:
        return not self._left

    def on_record(self, payload: bytes) -> int | None:
        batch, size, number = map(int, payload.split())
        assert batch == self.whole, (
            f"a record of batch {batch} while batch {self.whole} lacks {len(self._left)} records"
        )
        assert size == size_of(batch)
        begins = not self._left
        if begins:
            self._left = {*range(size)}
        assert number in self._left, f"record {number} of batch {batch} comes twice"
        self._left.remove(number)
        if not self._left:
            self.whole += 1
        return batch if begins else None


class LiveBatches:
    """The reader, in a thread of its own. Leaving the block ends it, and fails if it saw anything wrong."""

    def __init__(self, uri: str, stream: str) -> None:
        self._uri, self._stream = uri, stream
        self._batches = BatchesInOrder()
        self._sums = _SizesSoFar()
        self.listings = 0
        self.listed_batches = 0
        self.entries = 0  # Batches that no listing showed when they were read, as their segment was still written.
        self._unlisted: tuple[int, int] | None = None  # The entry that such a batch has to be.
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._reading: asyncio.Task[None]
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live batches", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(_STOP_S)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._reading.cancel)
        self._thread.join(_STOP_S)
        self.check()

    @property
    def batches(self) -> int:
        """How many it has read to the end. Fails if there was something wrong."""
        self.check()
        return self._batches.whole

    @property
    def is_between_batches(self) -> bool:
        return self._batches.is_between_batches

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._follow())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._error = error

    async def _follow(self) -> None:
        self._loop = asyncio.get_running_loop()
        current = asyncio.current_task()
        assert current is not None
        self._reading = current
        self._ready.set()
        async with quire.connect(self._uri) as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tail(client))
            tasks.create_task(self._list(client))

    async def _tail(self, client: Any) -> None:
        async with client.open_reader(self._stream) as reader:
            async for records in reader.batches():
                newest, entries = None, set[tuple[int, int]]()
                for record in records:
                    begun, entry = self._batches.on_record(record.payload), (record.dlsn.lssn, record.dlsn.entry_id)
                    if begun is not None:
                        newest, entries, self._unlisted = begun, set(), None
                    assert self._unlisted in (None, entry), f"{entry} goes on with a batch that was not listed"
                    entries.add(entry)
                if newest is not None:
                    listed = await self._look(client)
                    if listed <= newest:
                        assert len(entries) == 1, f"batch {newest} is read, and only {listed} batches are listed"
                        (self._unlisted,) = entries
                        self.entries += 1

    async def _list(self, client: Any) -> None:
        async def is_over() -> bool:
            await self._look(client)
            return False

        await eventually(is_over, within_s=math.inf)

    async def _look(self, client: Any) -> int:
        """How many batches a listing shows. Segments of a batch appear in one step, so it has all of them or none."""
        count = (await client.stream_info(self._stream)).record_count
        batches = self._sums.batches(count)
        assert batches is not None, f"half a batch is listed: {count} records"
        self.listings += 1
        self.listed_batches = max(self.listed_batches, batches)
        return batches


class _SizesSoFar:
    def __init__(self) -> None:
        self._batches = {0: 0}

    def batches(self, records: int) -> int | None:
        """How many batches have so many records in all; None if there is no such number."""
        if records > max(self._batches):
            sizes = map(size_of, range(2 * len(self._batches) + records))
            self._batches |= {total: number for number, total in enumerate(accumulate(sizes), 1)}
        return self._batches.get(records)
