"""What a proxy did not take, counted by cause: bad clients are refused one by one, and seen in the metrics."""

from typing import Final

from quire.telemetry import names
from quire.telemetry.metrics import Counter, Registry

CAUSES: Final = {
    "no_client_id": "The call does not say whose it is",
    "unknown_method": "The call is none of this proxy's",
    "not_grpc": "HTTP/2, but no call of gRPC",
    "other_protocol": "The connection speaks something else",
    "broken_rules": "The connection broke the rules of HTTP/2",
    "silent_connection": "The connection said nothing",
    "too_many_connections": "There were as many connections as there may be",
    "too_many_calls": "There were as many calls as there may be",
    "too_many_bytes": "There was no memory for a large message",
    "too_many_resets": "The connection opened calls only to give them up",
    "message_too_large": "A message was larger than allowed",
    "compressed_message": "A message was compressed",
    "broken_message": "A message was not whole, or not of its type",
    "no_token": "The call has no token, and needs one",
    "unknown_token": "The call has a token that is not known",
    "stale_token": "The call has a token that has expired",
    "revoked_call": "The token of an open call expired, or was taken back",
    "no_first_message": "The call was opened, and nothing was sent",
}


class Refusals:
    """Counters of what was refused, by cause."""

    def __init__(self, registry: Registry | None = None) -> None:
        self._counters = {
            cause: Counter() if registry is None else registry.counter(names.SERVING_REFUSED_TOTAL, cause=cause)
            for cause in CAUSES
        }

    def show_in(self, registry: Registry) -> None:
        """Have them in the metrics of whoever is served, which came about after the port was bound."""
        for cause, counter in self._counters.items():
            registry.counter(names.SERVING_REFUSED_TOTAL, cause=cause).read = lambda each=counter: each.value

    def count(self, cause: str) -> None:
        self._counters[cause].add()

    def counts(self) -> dict[str, int]:
        """How often each cause occurred; those that never did are left out."""
        return {cause: counter.value for cause, counter in self._counters.items() if counter.value}
