"""What a proxy's error means for the next attempt: the table of docs/reference/serving-api.md, from the client's side.

Whether something happened is what the result says of itself (`applied`), not what its code usually means.
"""

from typing import Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import (
    NotOwner,
    OverCapacity,
    ProxyDraining,
    ProxyOutcomeUnknown,
    ProxyUnreachable,
    QuireError,
    StreamUnavailable,
    TooManyStreams,
)
from quire.protocol.redirects import Advice, Failure
from quire.rpc.serving.results import is_not_applied

_ADVICE: Final[dict[int, Advice]] = {
    pb.NOT_OWNER: Advice.OWNER,
    pb.QUOTA_EXCEEDED: Advice.HERE,
    pb.OVER_CAPACITY: Advice.HERE,
    pb.STREAM_NOT_READY: Advice.HERE,
    pb.PREDECESSOR_FAILED: Advice.HERE,
    pb.CHECKSUM_FAILED: Advice.AGAIN,
    pb.UNAUTHENTICATED: Advice.AGAIN,  # A token that expired may be replaced by now.
    pb.READ_OVERLOADED: Advice.OTHER_PROXY,
    pb.TOO_MANY_STREAMS: Advice.OTHER_PROXY,
    pb.REGION_UNAVAILABLE: Advice.OTHER_PROXY,
    pb.STREAM_UNAVAILABLE: Advice.ELSEWHERE,
    pb.LOCKING: Advice.ELSEWHERE,
    pb.METADATA_UNAVAILABLE: Advice.ELSEWHERE,
    pb.WRITE_CANCELLED: Advice.ELSEWHERE,
    pb.TRANSMIT_ERROR: Advice.ELSEWHERE,
    pb.FLUSH_TIMEOUT: Advice.ELSEWHERE,
    pb.WRITE_EXCEPTION: Advice.ELSEWHERE,
    pb.FENCED: Advice.ELSEWHERE,
    pb.COLD_UNAVAILABLE: Advice.ELSEWHERE,
    pb.SERVICE_UNAVAILABLE: Advice.HOST_GONE,
}
_ADVICE_OF_KINDS: Final[dict[type[QuireError], Advice]] = {  # For errors that came without a result.
    NotOwner: Advice.OWNER,
    OverCapacity: Advice.HERE,
    StreamUnavailable: Advice.ELSEWHERE,
    TooManyStreams: Advice.OTHER_PROXY,
    ProxyDraining: Advice.HOST_GONE,
    ProxyUnreachable: Advice.HOST_GONE,
    ProxyOutcomeUnknown: Advice.HOST_GONE,
}


def failure_of(error: QuireError) -> Failure:
    """What an error of a call, or of a batch, says."""
    result, retry_after_ms = error.facts.get("result"), error.facts.get("retry_after_ms")
    if isinstance(result, pb.Result):
        advice = _ADVICE.get(result.code, Advice.FINAL)
    else:
        advice = next(
            (_ADVICE_OF_KINDS[kind] for kind in type(error).__mro__ if kind in _ADVICE_OF_KINDS), Advice.FINAL
        )
    owner = error.facts.get("proxy")
    return Failure(
        advice,
        may_have_happened=not is_not_applied(error),
        answered=isinstance(result, pb.Result) or not isinstance(error, ProxyUnreachable | ProxyOutcomeUnknown),
        owner=address_of(owner) if isinstance(owner, pb.Owner) and owner.host else None,
        owner_live=bool(error.facts.get("owner_live", True)),
        retry_after_s=retry_after_ms / 1000 if isinstance(retry_after_ms, int) else 0.0,
    )


def epoch_of(error: QuireError) -> int:
    """The epoch that a redirect speaks of; 0 if it does not."""
    epoch = error.facts.get("epoch")
    return epoch if isinstance(epoch, int) else 0


def address_of(owner: pb.Owner) -> str:
    """As it stands on the ring."""
    return f"{owner.host}:{owner.port}"
