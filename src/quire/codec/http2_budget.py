"""How many frames that carry no message a peer of HTTP/2 may send. Sans-IO.

Frames of control cost the peer a few bytes and us some work. An honest peer needs few: some when the connection begins,
some now and then, and some for each call that it opens and each frame of data that it is sent, to make room for more.
So each of them takes from a credit, which calls and our own frames of data have earned for the peer, or else from a
token bucket. An attacker spends the bucket at once on each new connection, and no other client is served meanwhile. So
the bucket is small: it is spent in a millisecond.

Invariants:
  WorkIsBounded   work beyond `BURST` is bounded by the calls and by the frames of data that we sent, and by the time
                  that passed.
  ManyCallsCost   a frame for which all calls are looked at costs more with more of them.
"""

from typing import Final

from quire.codec.http2 import ENHANCE_YOUR_CALM, Http2Violation

BURST: Final = 1_000
PER_S: Final = 100
PER_EXCHANGE: Final = 4  # Some clients answer each one with room for its call and for the connection, and a PING.
_CALLS_LOOKED_AT: Final = 8  # In the time that a frame takes by itself.


class FrameBudget:
    """What one peer has left."""

    __slots__ = ("_left", "_seen_s", "_used")

    def __init__(self) -> None:
        self._left, self._seen_s = float(BURST), 0.0
        self._used = 0  # Of what was earned.

    def spend(self, now_s: float, *, exchanges: int, calls: int = 0) -> None:
        """For a frame that makes us look at so many calls. `exchanges` are calls that the peer opened and frames of
        data that we sent, so far. Raises `Http2Violation` when there is nothing left."""
        work = 1 + calls // _CALLS_LOOKED_AT
        if self._used + work <= PER_EXCHANGE * exchanges:
            self._used += work
            return
        left = min(BURST, self._left + (now_s - self._seen_s) * PER_S) - work
        if left < 0:
            raise Http2Violation("too many frames that say nothing", ENHANCE_YOUR_CALM)
        self._left, self._seen_s = left, now_s
