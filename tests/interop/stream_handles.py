"""Apache's writers and readers of streams, as they are held open: each class is one of Java's objects over there."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from quire.codec.stream.compression import Compression
from quire.types import DLSN
from tests.interop.ledger_client import Payloads, text
from tests.interop.peer import JavaPeer
from tests.interop.stream_facts import JavaRecord, StreamProgress, dlsn_of
from tests.support.waiting import eventually

READ_WITHIN_S: Final = 20.0

# Java's readers fail with the first now and then on their way from one segment to the next, though nobody cancelled
# them. The second is our name for those that stand still (`LostWakeUpException.java`), which is seen only when nothing
# came for long. Applications have to open another one then, and so do we.
FALSE_ALARMS: Final = ("ReadCancelledException", "LostWakeUpException")


class JavaStreamWriter:
    """An asynchronous writer. Whoever opened it closes or aborts it, unless its process is to die with it."""

    def __init__(self, peer: JavaPeer, number: int) -> None:
        self._peer, self._number = peer, number

    async def _call(self, command: str, **arguments: Any) -> Any:
        return await self._peer.call(f"stream_writer.{command}", writer=self._number, **arguments)

    async def write(
        self, payloads: Payloads, count: int, *, first_txid: int, bulk: bool = False, commit: bool = False
    ) -> list[DLSN]:
        """Write payloads under their numbers as txids. Where they are, once all are acknowledged.

        Java acknowledges nothing that it still buffers: either its settings make it transmit, or `commit` does.
        """
        places = await self._call(
            "write", count=count, first_txid=first_txid, bulk=bulk, commit=commit, **payloads.arguments
        )
        return [dlsn_of(place) for place in places]

    async def write_records(
        self, records: Sequence[tuple[int, bytes]], *, bulk: bool = False, commit: bool = False
    ) -> list[DLSN]:
        """As `write`, for txids and payloads of the caller's choice."""
        places = await self._call("write", records=_encoded(records), bulk=bulk, commit=commit)
        return [dlsn_of(place) for place in places]

    async def write_set(
        self, payloads: Sequence[bytes], *, txid: int, compression: Compression = Compression.NONE
    ) -> list[DLSN]:
        """Write all payloads as one record. Where each member is."""
        answer = await self._call("write_set", payloads=[*map(text, payloads)], txid=txid, compression=compression.name)
        assert answer["set"] == answer["members"][0]
        return [dlsn_of(place) for place in answer["members"]]

    async def write_control(self, txid: int) -> DLSN:
        return dlsn_of(await self._call("write_control", txid=txid))

    async def commit(self) -> int:
        """Transmit what is buffered, and make it visible. The highest txid that was acknowledged."""
        txid: int = await self._call("commit")
        return txid

    async def roll(self, txid: int) -> None:
        """Go on in a new segment. A control record with this txid sets it off, and one is the first in the new one."""
        await self._call("roll", txid=txid)

    async def truncate(self, dlsn: DLSN) -> bool:
        done: bool = await self._call("truncate", dlsn=dlsn)
        return done

    async def last_txid(self) -> int:
        txid: int = await self._call("last_txid")
        return txid

    async def end_stream(self) -> int:
        txid: int = await self._call("end_stream")
        return txid

    async def close(self) -> None:
        """Complete the segment and give up the stream."""
        await self._call("close")

    async def abort(self) -> None:
        """Leave the segment as it is, as a crash would, but give up the stream."""
        await self._call("abort")

    # --- Writing in the background

    async def start_writing(
        self, payloads: Payloads, *, first_txid: int, inflight_max: int = 20, pause_us: int = 0
    ) -> None:
        """Write payload after payload until `stop_writing`, or until a write fails."""
        await self._call(
            "start", first_txid=first_txid, inflight_max=inflight_max, pause_us=pause_us, **payloads.arguments
        )

    async def progress(self) -> StreamProgress:
        return _progress(await self._call("progress"))

    async def stop_writing(self) -> StreamProgress:
        """Write nothing more, and wait until everything that was under way is answered."""
        return _progress(await self._call("stop", within_ms=30_000))


class JavaSyncWriter:
    """A synchronous writer, which buffers until `flush` or `commit`, and does not say where a record went."""

    def __init__(self, peer: JavaPeer, number: int) -> None:
        self._peer, self._number = peer, number

    async def _call(self, command: str, **arguments: Any) -> Any:
        return await self._peer.call(f"sync_writer.{command}", writer=self._number, **arguments)

    async def write_records(self, records: Sequence[tuple[int, bytes]], *, roll: bool = False) -> None:
        """With `roll`, the first of the records begins a new segment."""
        await self._call("write", records=_encoded(records), roll=roll)

    async def flush(self) -> int:
        """Transmit what is buffered. The highest txid that was acknowledged."""
        txid: int = await self._call("flush")
        return txid

    async def commit(self) -> int:
        """Make visible what was transmitted."""
        txid: int = await self._call("commit")
        return txid

    async def end_stream(self) -> None:
        await self._call("end_stream")

    async def close(self) -> None:
        await self._call("close")

    async def abort(self) -> None:
        await self._call("abort")


class JavaTail:
    """A reader that follows a stream, and what it has collected so far. `open_at` opens one from a place on.

    One that fails with one of `FALSE_ALARMS` is replaced by another.
    """

    def __init__(self, peer: JavaPeer, number: int, *, open_at: Callable[[DLSN | None], Awaitable[int]]) -> None:
        self._peer, self._number, self._open_at = peer, number, open_at
        self._before = 0  # Records of readers that were replaced.
        self.records: list[JavaRecord] = []
        self.error: str | None = None  # The Java class of what ended the reading, and what it says.
        self.message: str | None = None

    async def poll(self) -> list[JavaRecord]:
        """All records so far."""
        found = await self._peer.call("tail.poll", tail=self._number, first=len(self.records) - self._before)
        self.records += [JavaRecord.of(record) for record in found["records"]]
        self.error, self.message = found["error"], found["message"]
        if self.error in FALSE_ALARMS:
            await self.stop()
            self._number = await self._open_at(self.records[-1].dlsn.next_slot() if self.records else None)
            self._before, self.error = len(self.records), None
        return self.records

    async def wait_records(self, count: int) -> list[JavaRecord]:
        """Wait until so many were collected. A reader that failed before fails the test."""

        async def collected() -> bool:
            have = len(await self.poll())
            assert have >= count or self.error is None, self._ended()
            return have >= count

        await eventually(collected, within_s=READ_WITHIN_S, what=f"{count} records were read")
        return self.records

    async def wait_error(self) -> str:
        """Wait until the reader fails, or comes to the end of the stream: `EndOfStreamException`."""

        async def failed() -> bool:
            await self.poll()
            return self.error is not None

        await eventually(failed, within_s=READ_WITHIN_S, what="the reader has ended")
        assert self.error is not None
        return self.error

    async def wait_in(self, ledger: int | None) -> None:
        """Wait until the reader waits for more at the end of this ledger, whose segment is in progress, or in none."""

        async def is_there() -> bool:
            await self.poll()
            assert self.error is None, self._ended()
            return bool(await self._peer.call("tail.waits_in", tail=self._number) == ledger)

        await eventually(is_there, within_s=READ_WITHIN_S, what=f"the reader waits in ledger {ledger}")

    async def stop(self) -> None:
        await self._peer.call("tail.stop", tail=self._number)

    def _ended(self) -> str:
        return f"the reader ended with {len(self.records)} records: {self.error} {self.message}"


async def await_records(writer: JavaStreamWriter, count: int) -> None:
    """Wait until a background writer has so many records acknowledged. One that failed fails the test."""

    async def written() -> bool:
        progress = await writer.progress()
        assert progress.error is None, f"the writer ended: {progress}"
        return progress.acknowledged >= count

    await eventually(written, what=f"{count} records are acknowledged")


def _encoded(records: Sequence[tuple[int, bytes]]) -> list[tuple[int, str]]:
    return [(txid, text(payload)) for txid, payload in records]


def _progress(facts: dict[str, Any]) -> StreamProgress:
    return StreamProgress(facts["acknowledged"], facts["last"] and dlsn_of(facts["last"]), facts["error"])
