"""What a stream's writer takes, and what it tells of records that it could not send."""

from collections.abc import Sequence
from typing import Final

from quire.codec.stream.limits import PAYLOAD_BYTES_MAX, TXID_MAX
from quire.errors import (
    AppendCancelled,
    AppendOutcomeUnknown,
    InvalidArgument,
    QuireError,
    RecordTooLarge,
    TxidOutOfOrder,
    WriterFenced,
)
from quire.protocol.transmit import TransmitRule
from quire.stream.settings import StreamSettings

_BYTES: Final = {bytes}


def checked_records(payloads: Sequence[bytes]) -> list[bytes]:
    """The same as bytes, which nobody changes any more."""
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        raise InvalidArgument("several records are a sequence of bytes", hint="Use `append` for a single one.")
    try:
        frozen = list(payloads)
        if set(map(type, frozen)) != _BYTES:
            frozen = [payload if type(payload) is bytes else bytes(memoryview(payload)) for payload in frozen]
    except TypeError as error:
        raise InvalidArgument(f"a record is bytes: {error}", hint="Encode it first.") from error
    if sum(map(len, frozen)) > PAYLOAD_BYTES_MAX and (largest := max(map(len, frozen))) > PAYLOAD_BYTES_MAX:
        raise RecordTooLarge(
            f"a record of {largest} bytes does not fit: {PAYLOAD_BYTES_MAX} is the most",
            bytes=largest,
            bytes_max=PAYLOAD_BYTES_MAX,
        )
    return frozen


def transmit_rule(settings: StreamSettings) -> TransmitRule:
    return TransmitRule(settings.transmit, settings.entry_bytes, settings.buffer_bytes, settings.in_flight_entries)


def partly_sent(stream: str, cause: QuireError) -> QuireError:
    kind = WriterFenced if isinstance(cause, WriterFenced) else AppendOutcomeUnknown
    unknown = kind(f"some of these records were sent to stream {stream!r}, others were not: {cause}", stream=stream)
    unknown.__cause__ = cause
    return unknown


def never_sent(stream: str, cause: QuireError) -> AppendCancelled:
    cancelled = AppendCancelled(f"nothing was sent to stream {stream!r}: {cause}", stream=stream)
    cancelled.__cause__ = cause
    return cancelled


def broken_off(stream: str, bug: BaseException) -> AppendCancelled:
    return AppendCancelled(f"the writer of stream {stream!r} broke off: {bug!r}", stream=stream)


def check_txids(stream: str, txids: Sequence[int], *, last_txid: int) -> int:
    """The last of these txids, each of which may follow the one before it. Raises `TxidOutOfOrder`."""
    for txid in txids:
        if txid < last_txid or not 0 <= txid < TXID_MAX:
            raise TxidOutOfOrder(
                f"txid {txid} cannot follow {last_txid} in stream {stream!r}",
                stream=stream,
                txid=txid,
                last_txid=last_txid,
            )
        last_txid = txid
    return last_txid
