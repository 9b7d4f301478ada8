"""Apache's ledger client, driven from here: a client speaks one wire version, a ledger is one that it has open.

Payloads are made from a seed and a number on either side, so that what comes back can be checked byte for byte.
"""

import base64
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

from quire.codec.digest import digest_for, master_key
from quire.codec.entry import EntryCodec
from quire.types import DigestType, LedgerId
from tests.interop.peer import JavaPeer
from tests.support.waiting import eventually

Wire = Literal[2, 3]

# How Java's writer hears that it was shut out: from a bookie, or from the metadata of a ledger that is sealed already.
SHUT_OUT = ("BKLedgerFencedException", "BKLedgerClosedException")


def java_shut_out(quorum: tuple[int, int, int] = (3, 3, 2)) -> tuple[str, ...]:
    """What ends a Java writer that is shut out while it writes to all bookies there are.

    "Fenced" as the answer to an entry that has its ack quorum already counts as a failed bookie there (`PendingAddOp`
    calls `notifyWriteFailed`, in 4.18), and there is no other one to take its place. It was seen with Apache's bookies
    alone, too. Where the ack quorum is the write quorum, no answer is left over that could do this.
    """
    _, write_quorum, ack_quorum = quorum
    return SHUT_OUT if ack_quorum == write_quorum else (*SHUT_OUT, "BKNotEnoughBookiesException")


@dataclass(frozen=True, slots=True)
class Payloads:
    """The hash of a seed and a number gives the length, and repeated the bytes. `Payloads.java` does the same."""

    seed: str
    bytes_min: int = 0
    bytes_max: int = 300

    def __getitem__(self, number: int) -> bytes:
        digest = hashlib.sha256(f"{self.seed}/{number}".encode()).digest()
        size = self.bytes_min + int.from_bytes(digest[:4]) % (self.bytes_max - self.bytes_min + 1)
        return (digest * (size // len(digest) + 1))[:size]

    def entries(self, first: int, last: int) -> list["Entry"]:
        """The entries `first` to `last` of a ledger to which payload after payload was appended."""
        length = sum(len(self[number]) for number in range(first))
        found = []
        for number in range(first, last + 1):
            length += len(self[number])
            found.append(Entry(number, length, self[number]))
        return found

    @property
    def arguments(self) -> dict[str, Any]:
        return {"seed": self.seed, "bytes_min": self.bytes_min, "bytes_max": self.bytes_max}


@dataclass(frozen=True, slots=True)
class Entry:
    entry_id: int
    length: int  # Of the ledger up to here, this entry included.
    payload: bytes

    @classmethod
    def of(cls, facts: list[Any]) -> Self:
        return cls(facts[0], facts[1], base64.b64decode(facts[2]))


@dataclass(frozen=True, slots=True)
class Secret:
    """What a ledger's entries are protected by."""

    digest: DigestType = DigestType.CRC32C
    password: bytes = b"secret"

    @property
    def key(self) -> bytes:
        """What a bookie gets to see of the password."""
        return master_key(self.password)

    def codec(self, ledger_id: int) -> EntryCodec:
        """Reads what a bookie holds of a ledger, and checks its digests, without Java."""
        return EntryCodec(LedgerId(ledger_id), digest_for(self.digest, self.password))

    @property
    def arguments(self) -> dict[str, str]:
        return {"digest": self.digest.name, "password": text(self.password)}


@dataclass(frozen=True, slots=True)
class Tail:
    """The answer to a long poll: what the reader now knows to be confirmed, and the entry it asked for, if any."""

    lac: int
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class Progress:
    """All entries below `acknowledged` were; `error` is the Java class of what ended the writing."""

    acknowledged: int
    error: str | None


class JavaLedger:
    """One ledger that a client has open."""

    def __init__(self, peer: JavaPeer, facts: dict[str, int]) -> None:
        self._peer, self._handle, self.id = peer, facts["handle"], facts["ledger"]

    async def _call(self, command: str, **arguments: Any) -> Any:
        return await self._peer.call(command, handle=self._handle, **arguments)

    async def append(self, payloads: Payloads, count: int, *, first: int = 0) -> list[int]:
        """Append the payloads `first` and following, pipelined. Their entry ids, once all are acknowledged."""
        ids: list[int] = await self._call("handle.append", first=first, count=count, **payloads.arguments)
        return ids

    async def write(self, payloads: Payloads, entry_ids: Sequence[int]) -> None:
        """Write the payloads of these numbers under the same entry ids, pipelined, to an advanced ledger."""
        await self._call("handle.write", entries=list(entry_ids), **payloads.arguments)

    async def read(self, first: int, last: int, *, unconfirmed: bool = False) -> list[Entry]:
        found = await self._call("handle.read", first=first, last=last, unconfirmed=unconfirmed)
        return [Entry.of(facts) for facts in found]

    async def batch_read(self, first: int, *, count_max: int, bytes_max: int, unconfirmed: bool = False) -> list[Entry]:
        found = await self._call(
            "handle.batch_read", first=first, count_max=count_max, bytes_max=bytes_max, unconfirmed=unconfirmed
        )
        return [Entry.of(facts) for facts in found]

    async def check(self, payloads: Payloads, last: int) -> int:
        """Have Java compare the entries 0 to `last` with what was appended. How many were right: all, or it raises."""
        right: int = await self._call("handle.check", first=0, last=last, **payloads.arguments)
        return right

    async def tail(self, entry_id: int, *, wait_ms: int, parallel: bool = False) -> Tail:
        """Wait for an entry to be confirmed."""
        facts = await self._call("handle.tail", entry=entry_id, wait_ms=wait_ms, parallel=parallel)
        return Tail(facts["lac"], Entry.of(facts["entry"]) if facts["entry"] else None)

    async def last_add_confirmed(self) -> int:
        """Ask a quorum of the bookies."""
        lac: int = await self._call("handle.last_add_confirmed")
        return lac

    async def try_last_add_confirmed(self) -> int:
        """Ask until the first bookie answers."""
        lac: int = await self._call("handle.try_last_add_confirmed")
        return lac

    async def explicit_lac(self) -> int:
        lac: int = await self._call("handle.explicit_lac")
        return lac

    async def force(self) -> None:
        await self._call("handle.force")

    async def seal(self) -> None:
        """Close the ledger, or let go of it where it is only read."""
        await self._call("handle.close")

    async def state(self) -> dict[str, Any]:
        """What the handle knows without asking anybody."""
        facts: dict[str, Any] = await self._call("handle.state")
        return facts

    async def ensembles(self) -> dict[int, list[str]]:
        """Who holds the entries, by the first entry of each fragment."""
        return dict((await self.state())["metadata"]["fragments"])

    # --- Writing in the background

    async def start_writing(self, payloads: Payloads, *, inflight_max: int = 20, pause_us: int = 0) -> None:
        """Append payload after payload until `stop_writing`, or until an add fails."""
        await self._call("writer.start", inflight_max=inflight_max, pause_us=pause_us, **payloads.arguments)

    async def progress(self) -> Progress:
        return Progress(**await self._call("writer.progress"))

    async def stop_writing(self) -> Progress:
        """Append nothing more, and wait until everything that was under way is answered."""
        return Progress(**await self._call("writer.stop", within_ms=30_000))


class JavaLedgerClient:
    """One client of Apache's, with connections of its own."""

    def __init__(self, peer: JavaPeer, number: int, wire: Wire) -> None:
        self._peer, self._number, self.wire = peer, number, wire

    async def _call(self, command: str, **arguments: Any) -> Any:
        return await self._peer.call(command, client=self._number, **arguments)

    async def create(
        self,
        secret: Secret,
        *,
        quorum: tuple[int, int, int] = (3, 3, 2),
        custom: Mapping[str, bytes] | None = None,
        deferred: bool = False,
        advanced: bool = False,
        ledger_id: int | None = None,
    ) -> JavaLedger:
        """With `advanced`, `JavaLedger.write` chooses the entry ids; only then can the ledger's id be chosen too."""
        encoded = {key: text(value) for key, value in (custom or {}).items()}
        facts = await self._call(
            "client.create",
            quorum=quorum,
            custom=encoded,
            deferred=deferred,
            advanced=advanced,
            ledger=ledger_id,
            **secret.arguments,
        )
        return JavaLedger(self._peer, facts)

    async def open(self, ledger_id: int, secret: Secret, *, recover: bool = True) -> JavaLedger:
        facts = await self._call("client.open_ledger", ledger=ledger_id, recover=recover, **secret.arguments)
        return JavaLedger(self._peer, facts)

    async def delete(self, ledger_id: int) -> None:
        await self._call("client.delete", ledger=ledger_id)

    async def close(self) -> None:
        await self._call("client.close")

    # --- One bookie at a time; an answer begins with "OK" or the name of Java's exception

    async def read_from(
        self, bookie: str, ledger_id: int, entry_id: int, *, fence_key: bytes | None = None
    ) -> tuple[str, bytes]:
        """What one bookie holds, header and digest included, or nothing. With a key, the ledger is fenced there."""
        key = None if fence_key is None else text(fence_key)
        facts = await self._call("replica.read", bookie=bookie, ledger=ledger_id, entry=entry_id, key=key)
        return facts["code"], base64.b64decode(facts["bytes"])

    async def batch_read_from(
        self, bookie: str, ledger_id: int, first: int, *, count_max: int, bytes_max: int
    ) -> tuple[str, list[bytes]]:
        facts = await self._call(
            "replica.batch_read",
            bookie=bookie,
            ledger=ledger_id,
            entry=first,
            count_max=count_max,
            bytes_max=bytes_max,
        )
        return facts["code"], [base64.b64decode(entry) for entry in facts["entries"]]

    async def add_to(
        self, bookie: str, ledger_id: int, entry_id: int, payload: bytes, *, key: bytes, recovery: bool = False
    ) -> str:
        """Store one entry on one bookie, with a CRC32C digest and the LAC before it."""
        code: str = await self._call(
            "replica.add",
            bookie=bookie,
            ledger=ledger_id,
            entry=entry_id,
            lac=entry_id - 1,
            payload=text(payload),
            key=text(key),
            recovery=recovery,
        )
        return code

    async def write_lac_to(self, bookie: str, ledger_id: int, lac: int, *, key: bytes) -> str:
        code: str = await self._call("replica.write_lac", bookie=bookie, ledger=ledger_id, lac=lac, key=text(key))
        return code

    async def read_lac_from(self, bookie: str, ledger_id: int) -> tuple[str, bytes, bytes]:
        """The explicit LAC packet and the last entry."""
        facts = await self._call("replica.read_lac", bookie=bookie, ledger=ledger_id)
        return facts["code"], base64.b64decode(facts["lac"]), base64.b64decode(facts["last_entry"])

    async def force_at(self, bookie: str, ledger_id: int) -> str:
        code: str = await self._call("replica.force", bookie=bookie, ledger=ledger_id)
        return code

    async def entries_at(self, bookie: str, ledger_id: int) -> list[int]:
        """Which entries one bookie says that it holds."""
        found: list[int] = await self._call("replica.entries", bookie=bookie, ledger=ledger_id)
        return found

    async def disk_of(self, bookie: str) -> tuple[str, int, int]:
        """Total and free bytes of one bookie's disks."""
        code, total, free = await self._call("replica.info", bookie=bookie, requested=3)
        return code, total, free


async def mortal_client(peer: JavaPeer, uri: str, wire: Wire, **settings: object) -> JavaLedgerClient:
    """A client that lives as long as its process."""
    number = await peer.call("client.open", uri=uri, wire=wire, settings={k: str(v) for k, v in settings.items()})
    return JavaLedgerClient(peer, number, wire)


@asynccontextmanager
async def connect(peer: JavaPeer, uri: str, wire: Wire, **settings: object) -> AsyncIterator[JavaLedgerClient]:
    """A client with the given settings of Java's besides. Ledgers that it leaves open are abandoned, not sealed."""
    client = await mortal_client(peer, uri, wire, **settings)
    try:
        yield client
    finally:
        await client.close()


async def await_entries(ledger: JavaLedger, count: int) -> None:
    """Wait until a background writer has so many entries acknowledged. One that failed fails the test."""

    async def written() -> bool:
        progress = await ledger.progress()
        assert progress.error is None, f"the writer ended: {progress}"
        return progress.acknowledged >= count

    await eventually(written, what=f"{count} entries are acknowledged")


async def follow(reader: JavaLedger, payloads: Payloads, entry: int, *, parallel: bool) -> int:
    """One long poll: how many entries it brought, which must be the right ones."""
    answer = await reader.tail(entry, wait_ms=1_000, parallel=parallel)
    if answer.entry is not None:
        assert (answer.entry.entry_id, answer.entry.payload) == (entry, payloads[entry])
        assert answer.lac >= entry
    elif answer.lac >= entry:  # Confirmed, but asked of a bookie that does not hold it.
        assert (await reader.read(entry, entry))[0].payload == payloads[entry]
    return int(answer.lac >= entry)


def text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
