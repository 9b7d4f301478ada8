"""Cut the bytes of a connection into frames.

    frame    length (4 bytes, unsigned) body (length bytes)

The same both ways, in both versions, in clear and inside TLS. There is no magic number and no checksum: a length that
is zero or too large is the only sign that the peer speaks something else, and after it no frame can be found again.

Invariants:
  FramesAreChunkless  the frames do not depend on how their bytes were cut into chunks, nor does where they end.
  HalfIsBounded       at most one frame is kept waiting for its end; its length is checked before its body arrives.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from quire.errors import InvalidArgument, ProtocolViolation

FRAME_BYTES_MAX: Final = 5 * 1024 * 1024  # What Apache's programs allow unless told otherwise.
LENGTH_BYTES: Final = 4

_V3_FIRST_BYTE: Final = 0x0A  # Field 1, the header: both of Java's serialisers write it first, and so do we.
_ENTRY_HEADER_BYTES: Final = 32
_ENVELOPE_BYTES_MAX: Final = 512  # More than any version's envelope takes, with room for fields of later releases.

_unpack_length = Struct(">I").unpack_from


class FrameSplitter:
    """One connection's incoming side. `frame_bytes_max` limits a frame with its length, as Apache's setting does."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        if frame_bytes_max <= LENGTH_BYTES:
            raise InvalidArgument(f"a frame of at most {frame_bytes_max} bytes cannot hold anything")
        self._frame_bytes_max = frame_bytes_max
        self._half = bytearray()  # The frame that is not complete yet, its length included.
        self._violation: ProtocolViolation | None = None

    @property
    def pending_bytes(self) -> int:
        """How much of an incomplete frame is waiting. Not 0 where TLS is to start: the peer sent too much."""
        return len(self._half)

    def take_half(self) -> bytes:
        """The beginning of an incomplete frame, which is not kept any longer: for who puts it before what follows."""
        half, self._half = bytes(self._half), bytearray()
        return half

    def split(self, data: bytes | bytearray | memoryview) -> Iterator[memoryview]:
        """The bodies of all frames that `data` completes, in order. Iterate to the end: the rest is kept only then.

        Bodies are views into `data`, which must not change while they are in use; the first may be a copy. After the
        frames before it, a bad length raises `ProtocolViolation`, in this call and in all later ones.
        """
        if self._violation is not None:
            raise self._violation.with_traceback(None)  # Raised again and again, it must not grow.
        view = memoryview(data)
        end = len(view)
        at = 0
        if self._half:
            at = self._extend_half(view)
            if at < 0:
                return
            frame, self._half = self._half, bytearray()  # Not cleared: the view that goes out must stay as it is.
            yield memoryview(frame)[LENGTH_BYTES:]
        length_max = self._frame_bytes_max - LENGTH_BYTES
        while end - at >= LENGTH_BYTES:
            (length,) = _unpack_length(view, at)
            if not 0 < length <= length_max:
                raise self._refuse(length)
            stop = at + LENGTH_BYTES + length
            if stop > end:
                break
            yield view[at + LENGTH_BYTES : stop]
            at = stop
        self._half += view[at:]

    def _extend_half(self, view: memoryview) -> int:
        """Move into the half frame what belongs to it. How much that was, or -1 if it is still not whole."""
        half = self._half
        taken = 0
        if len(half) < LENGTH_BYTES:
            taken = min(LENGTH_BYTES - len(half), len(view))
            half += view[:taken]
            if len(half) < LENGTH_BYTES:
                return -1
        (length,) = _unpack_length(half)
        if not 0 < length <= self._frame_bytes_max - LENGTH_BYTES:
            raise self._refuse(length)
        missing = LENGTH_BYTES + length - len(half)
        half += view[taken : taken + missing]
        return taken + missing if missing <= len(view) - taken else -1

    def _refuse(self, length: int) -> ProtocolViolation:
        if length == 0:
            message = "a frame of no bytes says nothing"
        else:
            message = (
                f"a frame of {LENGTH_BYTES + length} bytes exceeds the limit of {self._frame_bytes_max}, "
                "or the peer does not speak the bookie protocol"
            )
        self._half = bytearray()
        self._violation = ProtocolViolation(message, length=length, frame_bytes_max=self._frame_bytes_max)
        return self._violation


def protocol_version(body: memoryview) -> int:
    """3 or 2: in which version of the protocol a request is made, and has to be answered.

    Java bookies stay with version 2 once they have met it. Looking at each frame anew understands the same clients.
    """
    return 3 if body[0] == _V3_FIRST_BYTE else 2


def payload_bytes_max(*, digest_bytes: int, frame_bytes_max: int = FRAME_BYTES_MAX) -> int:
    """The largest payload that fits into a frame with all around it, in both versions, in an add and in a read.

    The writer has to check it: a frame above the bookie's limit costs the connection, not one request.
    """
    return max(0, frame_bytes_max - _ENVELOPE_BYTES_MAX - _ENTRY_HEADER_BYTES - digest_bytes)
