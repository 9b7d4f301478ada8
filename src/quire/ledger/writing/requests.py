"""How a ledger's entries are put into add requests: of version 2, or of version 3, which alone has deferred sync."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

from quire.codec.digest import Buffer, Digest
from quire.codec.entry import EntryCodec
from quire.codec.wire.v2_adds import AddEncoder
from quire.rpc import AddSink, BookieChannel
from quire.runtime.network import are_worth_joining
from quire.types import EntryId, LedgerId


class AddRequests(Protocol):
    """The add requests of one ledger. What `heads` makes goes before each payload, here and when it is sent again."""

    @property
    def version(self) -> Literal[2, 3]:
        """Which of a bookie's two channels they need."""

    @property
    def needs_one_life(self) -> bool:
        """Whether what a bookie acknowledged counts only while the connection lasts on which it did."""

    def heads(self, first: EntryId, payloads: Sequence[bytes], *, lac: EntryId, length: int) -> tuple[list[bytes], int]:
        """The heads of entries from `first` on, and the ledger's length after them; `length` is that before them."""

    def send(
        self, channel: BookieChannel, entry_ids: Sequence[EntryId], parts: Sequence[Buffer], sink: AddSink
    ) -> None:
        """Send what `parts` holds: head and payload of each entry. Raises `BookieUnavailable` and `BookieBusy`."""

    def pack(self, parts: list[bytes]) -> list[bytes]:
        """The same parts, in the form in which they cost least to be sent to several bookies."""


class PlainAdds:
    """Adds of version 2."""

    version: ClassVar[Literal[2]] = 2
    needs_one_life: ClassVar[bool] = False

    def __init__(self, ledger_id: LedgerId, digest: Digest, master_key: bytes, *, flags: int = 0) -> None:
        self._ledger_id = ledger_id
        self.heads = AddEncoder(ledger_id, digest, master_key, flags=flags).heads

    def pack(self, parts: list[bytes]) -> list[bytes]:
        if are_worth_joining(parts, sum(map(len, parts))):
            return [b"".join(parts)]  # Once for all bookies, instead of once for each in its connection.
        return parts

    def send(
        self, channel: BookieChannel, entry_ids: Sequence[EntryId], parts: Sequence[Buffer], sink: AddSink
    ) -> None:
        channel.send_adds(self._ledger_id, parts, entry_ids, sink)


class FlaggedAdds:
    """Adds of version 3 with write flags, one request for each entry."""

    version: ClassVar[Literal[3]] = 3
    needs_one_life: ClassVar[bool] = True  # Its disk need not have it: a power cut takes it, unnoticed.

    def __init__(self, ledger_id: LedgerId, digest: Digest, master_key: bytes, *, write_flags: int) -> None:
        self._ledger_id, self._key, self._write_flags = ledger_id, master_key, write_flags
        self._codec = EntryCodec(ledger_id, digest)

    def heads(self, first: EntryId, payloads: Sequence[bytes], *, lac: EntryId, length: int) -> tuple[list[bytes], int]:
        heads: list[bytes] = []
        for entry_id, payload in enumerate(payloads, first):
            length += len(payload)
            heads.append(self._codec.prefix(EntryId(entry_id), payload, lac=lac, length=length))
        return heads, length

    def pack(self, parts: list[bytes]) -> list[bytes]:
        return parts  # Each request has a number of its own.

    def send(
        self, channel: BookieChannel, entry_ids: Sequence[EntryId], parts: Sequence[Buffer], sink: AddSink
    ) -> None:
        for place, entry_id in enumerate(entry_ids):
            entry = parts[2 * place : 2 * place + 2]
            channel.send_add_v3(self._ledger_id, entry_id, self._key, entry, sink, write_flags=self._write_flags)
