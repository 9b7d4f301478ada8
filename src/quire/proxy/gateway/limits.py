"""The bounds that the gateway's OpenAPI description names: a client may rely on them, so they are no settings."""

from typing import Final

from quire.codec.stream.limits import PAYLOAD_BYTES_MAX, TXID_MAX

RECORD_BYTES_MAX: Final = PAYLOAD_BYTES_MAX
BODY_BYTES_MAX: Final = 4 << 20  # Of a request with several records.
RECORDS_MAX: Final = 10_000  # In a request, and in an answer.
SMALL_BODY_BYTES_MAX: Final = 16 << 10  # Of everything that is not records.
TXID_LAST: Final = TXID_MAX - 1

FETCH_RECORDS: Final = 1000  # Unless the client says otherwise.
FETCH_BYTES: Final = 1 << 20
FETCH_BYTES_MAX: Final = 4 << 20
WAIT_MS: Final = 1000
WAIT_MS_MAX: Final = 30_000

PAGE_STREAMS: Final = 100
PAGE_STREAMS_MAX: Final = 1000

PRODUCER_CHARACTERS_MAX: Final = 128
SEND_BUFFER_BYTES_MAX: Final = 1 << 20  # What waits for a slow client of an event stream.
