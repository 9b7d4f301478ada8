"""One connection to one bookie: adds and reads in runs, everything else as a call that is awaited.

    writer ── send_adds ─▶ parts ─▶ one write a turn ─▶ bookie
    writer ◀─ AddSink ◀─ every answer of one data_received, by sink ◀─ bookie

Nothing is made for a single entry of a run: no task, no future, no timer. What waits for an answer is looked through
on a coarse tick, while there is anything to look through. So a deadline may be noticed one tick late.

A channel that has spoken version 2 refuses version 3 (see `exchange`): keep one channel for adds and reads of version
2, and one for what only version 3 has.

Invariants:
  OneEndEach      every add is answered or lost, once; every call returns or raises.
  NothingEarly    no byte of a request leaves before TLS is up, if TLS is asked for.
"""

import ssl
from collections.abc import Callable, Sequence
from typing import Final, Literal, Self, TypeVarTuple, cast

from quire.codec.digest import Buffer
from quire.codec.wire import v2
from quire.codec.wire.availability import EntryAvailability, decode_availability
from quire.codec.wire.codes import Status
from quire.codec.wire.v2_adds import AddRun
from quire.codec.wire.v3_adds import add_request_parts
from quire.codec.wire.v3_messages import (
    HIGH_PRIORITY,
    AuthMessage,
    BookieInfoRequest,
    BookieInfoResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    Operation,
    ReadFlag,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
    WriteLacResponse,
)
from quire.errors import BookieUnavailable, QuireError
from quire.rpc.adds import AddSink, EntryIds, PendingAdds
from quire.rpc.errors import status_error, unanswered_error, unreachable_error
from quire.rpc.exchange import TIMED_OUT, Exchange
from quire.rpc.reads import ReadRun
from quire.rpc.settings import ChannelSettings
from quire.runtime import Runtime
from quire.types import NO_ENTRY, EntryId, LedgerId

Ts = TypeVarTuple("Ts")

_DEFAULT_SETTINGS: Final = ChannelSettings()


class BookieChannel(Exchange):
    """A connection, made by `connect` and good until it is closed or lost. For use within one event loop."""

    def __init__(self, runtime: Runtime, address: tuple[str, int], settings: ChannelSettings) -> None:
        super().__init__(runtime, address, settings)
        self._adds = PendingAdds()

    # --- Opening ------------------------------------------------------------------------------------------------

    @classmethod
    async def connect(
        cls,
        runtime: Runtime,
        host: str,
        port: int,
        settings: ChannelSettings = _DEFAULT_SETTINGS,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> Self:
        """Open a connection; with `tls`, in clear at first, as bookies want it. Raises `BookieUnavailable`.

        `server_hostname` is whom the certificate must be for; `host` unless told otherwise.
        """
        try:
            _, channel = await runtime.network.connect(
                host, port, lambda: cls(runtime, (host, port), settings), timeout_s=settings.connect_timeout_s
            )
        except OSError as error:
            raise unreachable_error(f"{host}:{port}", error) from error
        if tls is not None:
            try:
                await channel._start_tls(tls, server_hostname or host)
            except BaseException as error:
                channel._abort("TLS did not come about", error)
                raise
        return channel

    async def _start_tls(self, tls: ssl.SSLContext, server_hostname: str) -> None:
        self._starting_tls = True
        try:
            await self._ask(Operation.START_TLS, StartTlsRequest(), StartTlsResponse)
            self._check_sendable()  # The answer came, and perhaps something with it that ended the connection.
            transport = await self._network.start_tls(
                self._transport,
                self,
                tls,
                timeout_s=self.settings.connect_timeout_s,
                server_hostname=server_hostname,
            )
        except OSError as error:
            raise unreachable_error(self.bookie, error) from error
        except QuireError as error:
            raise BookieUnavailable(
                f"bookie {self.bookie} did not agree to TLS: {error}",
                hint="Set TLS up on that bookie, or connect without.",
                bookie=self.bookie,
            ) from error
        self._use(transport)
        self._starting_tls = False

    # --- Adds ---------------------------------------------------------------------------------------------------

    def send_adds(self, ledger_id: LedgerId, frames: Sequence[Buffer], entries: EntryIds, sink: AddSink) -> None:
        """Send adds of version 2 that are encoded already; `sink` hears of each entry once.

        The frames go out as they are and must not change any more; they may be cut into parts anywhere. `entries` are
        those in them. No frame may exceed the bookie's limit: that would cost the connection. Raises
        `BookieUnavailable` or `BookieBusy` and sends nothing.
        """
        self._check_version(2)
        self._adds.push(ledger_id, entries, sink, deadline_s=self._clock.monotonic() + self.settings.request_timeout_s)
        self._send(frames)

    def send_add_v3(
        self,
        ledger_id: LedgerId,
        entry_id: EntryId,
        master_key: bytes,
        entry: Sequence[Buffer],
        sink: AddSink,
        *,
        write_flags: int = 0,
        recovery: bool = False,
        high_priority: bool = False,
    ) -> None:
        """Send one add of version 3: for deferred sync, or beside other calls of that version. `entry` is in parts."""
        txn_id = self._next_number()
        prefix, suffix = add_request_parts(
            txn_id,
            ledger_id,
            entry_id,
            master_key,
            entry_bytes=sum(map(len, entry)),
            write_flags=write_flags,
            recovery=recovery,
            priority=HIGH_PRIORITY if high_priority else 0,
        )
        parts = (prefix, *entry, suffix)
        self._check_size(sum(map(len, parts)))
        self._check_version(3)
        deadline_s = self._clock.monotonic() + self.settings.request_timeout_s
        self._adds.push_v3(txn_id, ledger_id, entry_id, sink, deadline_s=deadline_s)
        self._send(parts)

    def _on_add_answers(self, v2: list[AddRun], v3: list[tuple[Status, int]]) -> None:
        for sink, answers in self._adds.on_answers(v2, v3):
            self._tell(sink.on_add_answers, answers)

    def _on_tick(self, now_s: float) -> bool:
        self._lose_adds(self._adds.expire(now_s), TIMED_OUT)
        return super()._on_tick(now_s) or bool(self._adds)

    def _on_end(self, problem: str, cause: BaseException | None) -> None:
        self._lose_adds(self._adds.take_all(), problem, cause)
        super()._on_end(problem, cause)

    def _lose_adds(
        self, lost: list[tuple[AddSink, list[EntryId]]], problem: str, cause: BaseException | None = None
    ) -> None:
        for sink, entry_ids in lost:
            error = unanswered_error(
                problem, bookie=self.bookie, may_be_done=True, timed_out=problem is TIMED_OUT, cause=cause
            )
            self._tell(sink.on_add_lost, entry_ids, error)

    def _tell(self, callback: Callable[[*Ts], None], *args: *Ts) -> None:
        """One ledger's bug must not cost the others their answers: it is reported to the loop and goes no further."""
        try:
            callback(*args)
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": "an add sink raised", "exception": error, "protocol": self, "transport": self._transport}
            )

    # --- Reads --------------------------------------------------------------------------------------------------

    async def read(
        self,
        ledger_id: LedgerId,
        entry_id: EntryId,
        *,
        version: Literal[2, 3] = 2,
        master_key: bytes | None = None,
        high_priority: bool = False,
        timeout_s: float | None = None,
    ) -> ReadResponse:
        """An entry, as it is stored; -1 asks for the last one there. With a master key the ledger is fenced first.

        `max_lac` is known in version 3 only, and not when fencing. A fencing read that fails may have fenced. Fence in
        version 3 where you can: in version 2 the answer may have to wait for those to older reads of the same entry.
        """
        if version == 3:
            flag = ReadFlag.FENCE_LEDGER if master_key is not None else None
            request = ReadRequest(ledger_id, entry_id, master_key, flag=flag)
            return await self._ask(
                Operation.READ_ENTRY,
                request,
                ReadResponse,
                timeout_s=timeout_s,
                high_priority=high_priority,
                may_change=flag is not None,
            )
        run = self._send_reads(ledger_id, (entry_id,), timeout_s, master_key=master_key, high_priority=high_priority)
        await run.future
        entry = run.found[entry_id]
        if isinstance(entry, Status):
            raise status_error(entry, bookie=self.bookie, ledger_id=ledger_id, entry_id=entry_id)
        return ReadResponse(ledger_id, entry_id, bytes(entry))

    def send_reads(self, ledger_id: LedgerId, entries: Sequence[EntryId], *, timeout_s: float | None = None) -> ReadRun:
        """Ask for entries, all in one write and with one future: see `ReadRun`. Version 2.

        The future raises `BookieUnavailable` if some were not answered in time; those that were are in `found`. To
        give up, cancel the future. Raises `BookieUnavailable` or `BookieBusy` and sends nothing.
        """
        return self._send_reads(ledger_id, entries, timeout_s)

    def _send_reads(
        self,
        ledger_id: LedgerId,
        entries: Sequence[EntryId],
        timeout_s: float | None,
        *,
        master_key: bytes | None = None,
        high_priority: bool = False,
    ) -> ReadRun:
        encode, flags = v2.encode_read_request, _read_flags(master_key, high_priority)
        frames = [encode(ledger_id, entry_id, flags=flags, master_key=master_key) for entry_id in entries]
        self._check_version(2)
        deadline_s, fences = self._deadline_s(timeout_s), master_key is not None
        run = ReadRun(ledger_id, entries, self._loop.create_future(), deadline_s=deadline_s, fences=fences)
        self._reads.push(run)
        self._send(frames)
        return run

    async def read_batch(
        self,
        ledger_id: LedgerId,
        first_entry_id: EntryId,
        *,
        entries_max: int,
        bytes_max: int,
        master_key: bytes | None = None,
        high_priority: bool = False,
        timeout_s: float | None = None,
    ) -> list[memoryview]:
        """Entries from `first_entry_id` on without a gap, the first whatever its size. Version 2.

        Bookies before 4.17 close the connection over it.
        """
        number = self._next_number()
        frame = v2.encode_batch_read_request(
            ledger_id,
            first_entry_id,
            number,
            entries_max=entries_max,
            bytes_max=bytes_max,
            flags=_read_flags(master_key, high_priority),
            master_key=master_key,
        )
        self._check_version(2)
        fences = master_key is not None
        call = self._new_call(Operation.BATCH_READ_ENTRY, timeout_s, ledger_id, first_entry_id, may_change=fences)
        self._calls.push(number, call)
        self._send((frame,))
        return cast(list[memoryview], await call.future)

    async def long_poll(
        self,
        ledger_id: LedgerId,
        previous_lac: EntryId,
        wait_ms: int,
        *,
        piggyback: bool = True,
        timeout_s: float | None = None,
    ) -> ReadResponse:
        """Wait at the bookie, up to `wait_ms`, until its LAC passes `previous_lac`. No change is no error.

        With `piggyback` the next entry comes along if the bookie has it; `entry_id` is -1 if not. Without, the answer
        is the last entry there. The answer has `request_timeout_s` on top of the wait, unless told otherwise.
        """
        flag = ReadFlag.ENTRY_PIGGYBACK if piggyback else None
        request = ReadRequest(ledger_id, NO_ENTRY, None, previous_lac, wait_ms, flag)
        patience_s = wait_ms / 1000 + self.settings.request_timeout_s
        return await self._ask(
            Operation.READ_ENTRY, request, ReadResponse, timeout_s=patience_s if timeout_s is None else timeout_s
        )

    # --- What only version 3 has --------------------------------------------------------------------------------

    async def read_lac(self, ledger_id: LedgerId, *, timeout_s: float | None = None) -> ReadLacResponse:
        """The LAC packet last written, and the last entry there. `NoSuchEntry` if there is neither, or no ledger.

        A bookie that has the packet and no entry answers with an error: `BookieFailed`.
        """
        return await self._ask(Operation.READ_LAC, ReadLacRequest(ledger_id), ReadLacResponse, timeout_s=timeout_s)

    async def write_lac(
        self, ledger_id: LedgerId, lac: EntryId, master_key: bytes, packet: bytes, *, timeout_s: float | None = None
    ) -> None:
        """Tell the bookie of a LAC. `packet` is `EntryCodec.encode_lac(lac)`, and what counts."""
        request = WriteLacRequest(ledger_id, lac, master_key, packet)
        await self._ask(Operation.WRITE_LAC, request, WriteLacResponse, timeout_s=timeout_s, may_change=True)

    async def force(self, ledger_id: LedgerId, *, timeout_s: float | None = None) -> None:
        """Return once all that the bookie acknowledged before is durable, deferred adds included."""
        await self._ask(
            Operation.FORCE_LEDGER,
            ForceLedgerRequest(ledger_id),
            ForceLedgerResponse,
            timeout_s=timeout_s,
            may_change=True,
        )

    async def bookie_info(self, *, timeout_s: float | None = None) -> BookieInfoResponse:
        """Size and free space of the bookie's disks."""
        return await self._ask(Operation.GET_BOOKIE_INFO, BookieInfoRequest(), BookieInfoResponse, timeout_s=timeout_s)

    async def list_entries(self, ledger_id: LedgerId, *, timeout_s: float | None = None) -> EntryAvailability:
        """Which entries of a ledger the bookie has. Some of Java's storages never answer: expect the timeout."""
        answer = await self._ask(
            Operation.GET_LIST_OF_ENTRIES_OF_LEDGER,
            ListEntriesRequest(ledger_id),
            ListEntriesResponse,
            timeout_s=timeout_s,
        )
        return decode_availability(answer.availability or b"")

    async def auth(self, message: AuthMessage, *, timeout_s: float | None = None) -> AuthMessage:
        """One step of an authentication, before anything else. Raises `WrongPassword` if the bookie refuses it."""
        return await self._ask(Operation.AUTH, message, AuthMessage, timeout_s=timeout_s, may_change=True)


def _read_flags(master_key: bytes | None, high_priority: bool) -> int:
    return (v2.DO_FENCING if master_key is not None else 0) | (v2.HIGH_PRIORITY if high_priority else 0)
