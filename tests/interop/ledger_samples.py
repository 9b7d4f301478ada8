"""Ledger metadata for both sides to read and write: every version, state and digest, and what is hard to store."""

import base64
import itertools
import random
import string
from collections.abc import Iterator
from typing import Any, Final

from quire.types import BookieId, DigestType, EntryId, Fragment, LedgerMetadata, LedgerState, Quorum

# Where the layouts change their paths, where the id generators change theirs, and both ends.
EDGE_IDS: Final = (
    0,
    1,
    9_999,
    10_000,
    12_345,
    99_999_999,
    100_000_000,
    2**31 - 2,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    21_474_836_487,
    1_234_567_890_123_456_789,
    2**63 - 1,
)

PASSWORDS: Final = (
    b"",
    b"secret",
    bytes(range(256)),
    b"a\"b'c\\d\n\t\x01\x7f\xc3\xa9",
    b"\\a\\v \x07\x0b\x08\x0c\\",
)
CUSTOM: Final[tuple[dict[str, bytes], ...]] = (
    {},
    {"app": b"\x00\xff"},
    {"": b"", "k\u00e9y \"quoted\" 'twice' \\ \n\t": bytes(range(256)), "\u4e2d\u6587": b"\xff", "plain": b"value"},
)

_ODD_BOOKIE: Final = BookieId(r"odd:;<=>?@[\]^_.-9")
_BOOKIE_ID_CHARACTERS: Final = string.ascii_letters + string.digits + "-.:;<=>?@[\\]^_"


def samples() -> Iterator[LedgerMetadata]:
    """Each combination of version, state and digest once, with the other fields taking turns."""
    for state in LedgerState:
        yield _sample(1, state, None, turn=state.value)
    for turn, (version, state, digest) in enumerate(itertools.product((2, 3), LedgerState, DigestType)):
        yield _sample(version, state, digest, turn=turn)
    beyond_16_bits = {"\U0001f600": b"only version 3 can hold this key for every Java release"}
    yield _sample(3, LedgerState.OPEN, DigestType.CRC32C, turn=0, custom=beyond_16_bits)


def samples_with_ids() -> list[tuple[int, LedgerMetadata]]:
    """All samples, each under an id of its own; the edges of the id space are among them."""
    found = list(samples())
    rng = random.Random(7)
    ids = list(EDGE_IDS)
    while len(ids) < len(found):
        ids.append(rng.randrange(2 ** rng.randrange(8, 63)))
    assert len(set(ids)) == len(ids), "choose another seed"
    return list(zip(ids, found, strict=False))


def _sample(
    version: int,
    state: LedgerState,
    digest: DigestType | None,
    *,
    turn: int,
    custom: dict[str, bytes] | None = None,
) -> LedgerMetadata:
    ensemble = 1 + turn % 4
    write = 1 + turn % ensemble
    firsts = (0, 1, 42, 2**40, 2**63 - 1)[: 1 + turn % 5]
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        quorum=Quorum(ensemble, write, write if version == 1 else max(0, write - turn % 2)),
        fragments=tuple(Fragment(EntryId(first), _bookies(ensemble, index)) for index, first in enumerate(firsts)),
        state=state,
        last_entry_id=EntryId((-1, 0, 149, 2**63 - 1)[turn % 4] if closed else -1),
        length=(0, 1, 76_543, 2**63 - 1)[turn % 4] if closed else 0,
        digest=digest,
        password=None if version == 1 else PASSWORDS[turn % len(PASSWORDS)],
        ctime_ms=None if version == 1 or turn % 2 else (0, 1_700_000_000_000, 2**63 - 1)[turn % 3],
        custom=custom or ({} if version == 1 else CUSTOM[turn % len(CUSTOM)]),
        format_version=version,
    )


def _bookies(count: int, start: int) -> tuple[BookieId, ...]:
    names = ("bk1:3181", "127.0.0.1:3181", "bookie-four", "host.example:65535", _ODD_BOOKIE, "[2001:db8::1]:3181")
    return tuple(BookieId(names[(start + index) % len(names)]) for index in range(count))


def random_metadata(rng: random.Random, version: int) -> LedgerMetadata:
    """Any ledger that `version` can hold."""
    ensemble = rng.randint(1, 5)
    write = rng.randint(1, ensemble)
    firsts = sorted({0, *(rng.randrange(2 ** rng.randint(1, 63)) for _ in range(rng.randint(0, 6)))})
    state = rng.choice(list(LedgerState))
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        quorum=Quorum(ensemble, write, write if version == 1 else rng.randint(0, write)),
        fragments=tuple(
            Fragment(EntryId(first), tuple(_random_bookie(rng) for _ in range(ensemble))) for first in firsts
        ),
        state=state,
        last_entry_id=EntryId(rng.randrange(2 ** rng.randint(1, 63)) - 1 if closed else -1),
        length=rng.randrange(2 ** rng.randint(1, 63)) if closed else 0,
        digest=None if version == 1 else rng.choice(list(DigestType)),
        password=None if version == 1 else rng.randbytes(rng.randint(0, 40)),
        ctime_ms=None if version == 1 or rng.random() < 0.5 else rng.randrange(2**63),
        custom={} if version == 1 else {_random_key(rng): rng.randbytes(rng.randint(0, 40)) for _ in range(3)},
        ctoken=rng.randrange(2**63 - 1) if version == 3 else 0,
        format_version=version,
    )


def _random_bookie(rng: random.Random) -> BookieId:
    return BookieId("b" + "".join(rng.choices(_BOOKIE_ID_CHARACTERS, k=rng.randint(1, 20))))


def _random_key(rng: random.Random) -> str:
    """Text of characters that fit into 16 bits: BookKeeper 4.18 spoils others in version 2."""
    return "".join(
        chr(rng.choice((rng.randrange(0x80), rng.randrange(0x80, 0xD800)))) for _ in range(rng.randint(0, 12))
    )


def facts(metadata: LedgerMetadata) -> dict[str, Any]:
    """What the Java side says of the same metadata (`LedgerJson`), all but the creation time."""
    return {
        "format_version": metadata.format_version,
        "quorum": [metadata.quorum.ensemble, metadata.quorum.write, metadata.quorum.ack],
        "state": metadata.state.name,
        "last_entry_id": metadata.last_entry_id,
        "length": metadata.length,
        "fragments": [[fragment.first_entry_id, list(fragment.bookies)] for fragment in metadata.fragments],
        "digest": metadata.digest.name if metadata.digest else None,
        "password": None if metadata.password is None else base64.b64encode(metadata.password).decode(),
        "ctime_stored": metadata.ctime_ms is not None,
        "custom": {key: base64.b64encode(value).decode() for key, value in metadata.custom.items()},
        "ctoken": metadata.ctoken,
    }


def order(metadata: LedgerMetadata) -> dict[str, Any]:
    """The same as an order for the Java side to build this metadata."""
    return {**facts(metadata), "ctime_ms": metadata.ctime_ms}


def told(java_metadata: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """What the Java side said, taken apart: the facts to compare, and its idea of the creation time."""
    answer = dict(java_metadata)
    return answer, answer.pop("ctime_ms")
