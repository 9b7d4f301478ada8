"""Who takes part in one run: writers and readers, each on a host of its own, and what they note."""

import asyncio
from collections import Counter, defaultdict
from typing import Any, Final

from quire.codec.stream.records import LogRecord
from quire.errors import QuireError
from quire.proxy.client.writer import ProxyWriter
from quire.stream.reader import StreamReader
from quire.types import DLSN, INITIAL_DLSN
from tests.simulation.serving.plan import Plan
from tests.simulation.serving.world import Serving
from tests.support.streams.served_history import Followed, History, Written

# With producer ids, which are the rule, without, and without but sending again what may have been stored.
_KINDS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"producer_ids": False},
    {"producer_ids": False, "at_least_once": True},
)
_BURST: Final = 4


class Acting:
    """One run: the world, the plan, and what came of it."""

    def __init__(self, world: Serving, plan: Plan) -> None:
        self.world, self.plan, self.rng = world, plan, world.sim.rng
        self.history = History()
        self.events: Counter[str] = Counter()
        self.streams = [f"s{number}" for number in range(plan.streams)]
        self.hidden: dict[str, DLSN] = defaultdict(lambda: INITIAL_DLSN)
        """Where streams may begin by now."""
        self.appended = asyncio.Event()
        """Set at each append: faults are most telling while something is under way."""
        self.writer_hosts = [f"writer{number}" for number in range(plan.writers)]
        self.reader_hosts = [f"reader{number}" for number in range(plan.readers)]

    def tally(self) -> Counter[str]:
        return self.events

    # --- Whom something happens to

    def any_stream(self) -> str:
        return self.rng.choice(self.streams)

    def any_reader(self) -> str:
        return f"r{self.rng.randrange(self.plan.read_proxies)}"

    def owner(self, stream: str) -> str:
        """The proxy that has it; any, if none does."""
        names = list(self.world.writers)
        owners = [name for name in names if self.world.writers[name].table.owns(stream) is not None]
        return self.rng.choice(owners or names)

    # --- Writing

    def begin_writing(self, name: str, stream: str, *, may_repeat: bool = False) -> Written:
        written = Written(f"{name}-{len(self.history.written)}", stream, may_repeat)
        self.history.written.append(written)
        return written

    async def write(self, number: int) -> None:
        """One client with a writer for each stream, which appends in bursts."""
        kind = _KINDS[number % len(_KINDS)] if number else {}
        stream, host = self.streams[number % len(self.streams)], self.writer_hosts[number]
        written = self.begin_writing(host, stream, may_repeat=bool(kind.get("at_least_once")))
        async with self.world.client(host, append_timeout_s=self.plan.append_timeout_s, **kind) as client:
            while True:
                try:
                    async with client.open_writer(stream) as writer:
                        await self._append_bursts(writer, written, must_succeed=self.plan.never_fails and not kind)
                    return
                except QuireError as error:  # No proxy takes it just now.
                    self.events[f"open: {type(error).__name__}"] += 1
                    await self.world.pause(0.2)

    async def _append_bursts(self, writer: ProxyWriter, written: Written, *, must_succeed: bool) -> None:
        appends: list[asyncio.Task[None]] = []
        while written.sent < 2 * self.plan.bursts:
            for _ in range(1 + self.rng.randrange(_BURST)):
                payloads = written.payloads(1 + self.rng.randrange(2))
                work = self._append(writer, written, payloads, must_succeed=must_succeed)
                appends.append(asyncio.create_task(work))
                await self.world.pause(0.004 * self.rng.random())
            await self.world.pause(self.plan.burst_pause_s * 2 * self.rng.random())
        await asyncio.gather(*appends)

    async def _append(
        self, writer: ProxyWriter, written: Written, payloads: list[bytes], *, must_succeed: bool
    ) -> None:
        self.appended.set()
        try:
            written.on_stored(payloads, await writer.append_many(payloads))
            self.events["acknowledged"] += 1
            self._check_owned()
        except QuireError as error:
            assert not must_succeed, f"NeverFails: {payloads} of {written.name}: {error!r}"
            written.on_failed(payloads, error)
            self.events[f"append: {type(error).__name__}"] += 1

    def _check_owned(self) -> None:
        owned = {name: len(proxy.table.owned) for name, proxy in self.world.writers.items()}
        most = self.plan.streams_owned_max
        assert max(owned.values()) <= most, f"NeverTooMany: {owned}"
        self.events["full"] += most in owned.values()

    # --- Reading

    async def follow(self, number: int, stream: str) -> None:
        """One reader from the beginning of a stream to its end, which is closed now and then."""
        host = self.reader_hosts[number]
        followed = Followed(host, stream)
        self.history.followed.append(followed)
        async with self.world.client(host) as client:
            at: DLSN | str = "earliest"
            while True:
                async with client.open_reader(stream, start=at) as reader:
                    if await self._read(reader, followed):
                        return
                    at = reader.position
                    self.events["reader reopened"] += 1

    async def _read(self, reader: StreamReader, followed: Followed) -> bool:
        """Whether the stream has ended."""
        async for batch in reader.batches():
            followed.records += batch
            self.events["shown"] += len(batch)
            if self.plan.is_calm:
                for record in batch:
                    self._check_confirmed(followed.stream, record)
            if self.rng.random() < self.plan.reopen_chance:
                return False
        return True

    def _check_confirmed(self, stream: str, record: LogRecord) -> None:
        for proxy in self.world.writers.values():
            owned = proxy.table.owns(stream)
            if owned is not None and owned.serving is not None:
                segment = owned.serving.writer._outlet.segment
                if segment is not None and segment.lssn == record.dlsn.lssn and segment._sent:
                    first = segment._sent[0].entry_id
                    assert record.dlsn.entry_id < first, f"ConfirmedOnly: {record} was shown, and {first} is in flight"
                    self.events["confirmed"] += 1
