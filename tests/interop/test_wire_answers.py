"""The same frames to a bookie of Apache's and to one of ours: the answers are the same, to the byte.

Version 3 is compared field by field, since Java's releases themselves differ in the order of fields.
"""

from collections.abc import Callable

import pytest

from tests.interop.conftest import OpenClient
from tests.interop.ensembles import Bookies, kinds
from tests.interop.ledger_client import Secret
from tests.interop.wire_talk import CLOSED, entry, talk, v2, v3

KEY, WRONG_KEY = Secret().key, Secret(password=b"wrong").key
ADD, READ, AUTH, READ_LAC, BATCH = 1, 2, 3, 4, 7
FENCE, RECOVERY = 1, 2

Talk = Callable[[int], list[bytes]]


def add3(ledger: int, number: int, *, key: bytes = KEY, lac: int | None = None, **fields: object) -> bytes:
    body = entry(ledger, number, number - 1 if lac is None else lac)
    message = {"ledger_id": ledger, "entry_id": number, "master_key": key, "body": body, **fields}
    return v3("ADD_ENTRY", add=message)


def read3(ledger: int, number: int, **fields: object) -> bytes:
    return v3("READ_ENTRY", read={"ledger_id": ledger, "entry_id": number, **fields})


def lac3(ledger: int, lac: int, *, key: bytes = KEY, body: bytes | None = None) -> bytes:
    packet = ledger.to_bytes(8) + lac.to_bytes(8) if body is None else body
    return v3("WRITE_LAC", write_lac={"ledger_id": ledger, "lac": lac, "master_key": key, "body": packet})


def read_lac3(ledger: int) -> bytes:
    return v3("READ_LAC", read_lac={"ledger_id": ledger})


def add2(ledger: int, number: int, *, key: bytes = KEY, flags: int = 0) -> bytes:
    return v2(ADD, key, entry(ledger, number, number - 1), flags=flags)


def batch2(ledger: int, first: int, *, count_max: int = 10, bytes_max: int = 10_000, key: bytes = b"") -> bytes:
    """With a key, one that fences."""
    fields = (ledger, first, 9, count_max.to_bytes(4, signed=True), bytes_max, key)
    return v2(BATCH, *fields, flags=FENCE if key else 0)


VERSION_3: dict[str, Talk] = {
    "add and read": lambda ledger: [
        *(add3(ledger, number) for number in (0, 1, 1, 5)),
        *(read3(ledger, number) for number in (0, 5, 3, 6, -1)),
    ],
    "unknown ledger": lambda ledger: [read3(ledger, 0), read3(ledger, -1), read_lac3(ledger)],
    "another version": lambda ledger: [
        v3("READ_ENTRY", version=2, read={"ledger_id": ledger, "entry_id": 0}),
        v3(
            "ADD_ENTRY",
            version=1,
            add={"ledger_id": ledger, "entry_id": 0, "master_key": KEY, "body": entry(ledger, 0, -1)},
        ),
        v3("READ_LAC", version=2, read_lac={"ledger_id": ledger}),
        v3("FORCE_LEDGER", version=2, force_ledger={"ledger_id": ledger}),
    ],
    "priority": lambda ledger: [
        v3("READ_ENTRY", priority=100, read={"ledger_id": ledger, "entry_id": 0}),
        v3("READ_LAC", priority=100, read_lac={"ledger_id": ledger}),
    ],
    "wrong key": lambda ledger: [
        add3(ledger, 0),
        add3(ledger, 1, key=WRONG_KEY),
        lac3(ledger, 0, key=WRONG_KEY),
        read3(ledger, -1, master_key=WRONG_KEY, flag="FENCE_LEDGER"),
        read3(ledger, -1, flag="FENCE_LEDGER"),
        add3(ledger, 1),
    ],
    "fence": lambda ledger: [
        add3(ledger, 0),
        read3(ledger, -1, master_key=KEY, flag="FENCE_LEDGER"),
        add3(ledger, 1),
        add3(ledger, 1, flag="RECOVERY_ADD"),
        read3(ledger, 1, master_key=KEY, flag="FENCE_LEDGER"),
        read3(ledger, 2, master_key=KEY, flag="FENCE_LEDGER"),
        read3(ledger, 1),
    ],
    "fence before the first entry": lambda ledger: [
        read3(ledger, -1, master_key=KEY, flag="FENCE_LEDGER"),
        add3(ledger, 0),
        read3(ledger, 0),
        add3(ledger, 0, flag="RECOVERY_ADD"),
    ],
    "fencing is no long poll": lambda ledger: [
        add3(ledger, 0),
        read3(ledger, -1, master_key=KEY, flag="FENCE_LEDGER", previous_lac=5, timeout_ms=60_000),
    ],
    "long poll": lambda ledger: [
        read3(ledger, -1, previous_lac=-1, timeout_ms=60_000, flag="ENTRY_PIGGYBACK"),
        *(add3(ledger, number) for number in range(4)),
        read3(ledger, -1, previous_lac=-1, timeout_ms=60_000, flag="ENTRY_PIGGYBACK"),
        read3(ledger, -1, previous_lac=1, timeout_ms=60_000, flag="ENTRY_PIGGYBACK"),
        read3(ledger, -1, previous_lac=2, timeout_ms=50, flag="ENTRY_PIGGYBACK"),
        read3(ledger, -1, previous_lac=2, flag="ENTRY_PIGGYBACK"),
        read3(ledger, 2, previous_lac=0, timeout_ms=60_000, flag="ENTRY_PIGGYBACK"),
        read3(ledger, 3, previous_lac=0, timeout_ms=60_000),
    ],
    "long poll for an entry that is elsewhere": lambda ledger: [
        add3(ledger, 1),
        add3(ledger, 5),
        read3(ledger, -1, previous_lac=1, timeout_ms=60_000, flag="ENTRY_PIGGYBACK"),
    ],
    "long poll after an explicit LAC": lambda ledger: [
        add3(ledger, 0),
        lac3(ledger, 0),
        read3(ledger, -1, previous_lac=-1, timeout_ms=60_000, flag="ENTRY_PIGGYBACK"),
        read3(ledger, 0),
    ],
    "long poll without entries": lambda ledger: [
        read3(ledger, -1, previous_lac=-1, flag="ENTRY_PIGGYBACK"),
        read3(ledger, -1, master_key=KEY, flag="FENCE_LEDGER"),
        read3(ledger, -1, previous_lac=-1, timeout_ms=50, flag="ENTRY_PIGGYBACK"),
        lac3(ledger, 3),
        read3(ledger, -1, previous_lac=0, timeout_ms=60_000, flag="ENTRY_PIGGYBACK"),
    ],
    "long poll that need not wait": lambda ledger: [
        add3(ledger, 0),
        read3(ledger, -1, previous_lac=3, timeout_ms=0, flag="ENTRY_PIGGYBACK"),
        read3(ledger, -1, previous_lac=3, timeout_ms=-5, flag="ENTRY_PIGGYBACK"),
        read3(ledger, 0, previous_lac=3, timeout_ms=50),
        read3(ledger, 0, flag="ENTRY_PIGGYBACK"),
        read3(ledger, 0, timeout_ms=60_000),
    ],
    "only a LAC": lambda ledger: [lac3(ledger, 3), read_lac3(ledger), read3(ledger, 0), read3(ledger, -1)],
    "only a fence": lambda ledger: [
        read3(ledger, -1, master_key=KEY, flag="FENCE_LEDGER"),
        read_lac3(ledger),
        v3("GET_LIST_OF_ENTRIES_OF_LEDGER", list_entries={"ledger_id": ledger}),
    ],
    "keys of any size": lambda ledger: [
        add3(ledger, 0, key=b""),
        add3(ledger, 1),
        read3(ledger, -1, master_key=b"", flag="FENCE_LEDGER"),
        add3(ledger + 1_000_000, 0, key=bytes(100)),
        add3(ledger + 1_000_000, 1, key=bytes(99)),
    ],
    "the largest id": lambda ledger: [add3(ledger, 2**63 - 1), read3(ledger, -1), add3(ledger, 0), read3(ledger, 0)],
    "flags that nobody knows": lambda ledger: [add3(ledger, 0, write_flags=2), add3(ledger, 1, write_flags=3)],
    "LACs": lambda ledger: [
        add3(ledger, 3),
        read_lac3(ledger),
        lac3(ledger, 3),
        read_lac3(ledger),
        lac3(ledger, 2),
        read_lac3(ledger),
        read3(ledger, 3),
        read3(ledger, -1, master_key=KEY, flag="FENCE_LEDGER"),
        lac3(ledger, 9),
        read_lac3(ledger),
    ],
    "a LAC that is too short": lambda ledger: [lac3(ledger, 3, body=b"short")],
    "an entry that is too short": lambda ledger: [
        v3("ADD_ENTRY", add={"ledger_id": ledger, "entry_id": 0, "master_key": KEY, "body": b"short"}),
        read3(ledger, 0),
    ],
    "the shortest entry": lambda ledger: [
        v3(
            "ADD_ENTRY",
            add={"ledger_id": ledger, "entry_id": 0, "master_key": KEY, "body": entry(ledger, 0, -1)[:24]},
        ),
        read3(ledger, 0),
        read_lac3(ledger),
    ],
    "ids that differ from the entry's": lambda ledger: [
        v3("ADD_ENTRY", add={"ledger_id": 1, "entry_id": 1, "master_key": KEY, "body": entry(ledger, 4, 3)}),
        read3(ledger, 4),
        read3(ledger, 1),
    ],
    "force": lambda ledger: [
        v3("FORCE_LEDGER", force_ledger={"ledger_id": ledger}),
        add3(ledger, 0, write_flags=1),
        v3("FORCE_LEDGER", force_ledger={"ledger_id": ledger}),
        read3(ledger, 0),
    ],
    "list of entries": lambda ledger: [
        v3("GET_LIST_OF_ENTRIES_OF_LEDGER", list_entries={"ledger_id": ledger}),
        *(add3(ledger, number) for number in (0, 1, 2, 5, 7, 9)),
        v3("GET_LIST_OF_ENTRIES_OF_LEDGER", list_entries={"ledger_id": ledger}),
    ],
    "disks": lambda ledger: [
        v3("GET_BOOKIE_INFO", bookie_info={"requested": 3}),
        v3("GET_BOOKIE_INFO", bookie_info={"requested": 1}),
        v3("GET_BOOKIE_INFO", bookie_info={"requested": 0}),
    ],
    "operations without a message": lambda ledger: [
        v3("RANGE_READ_ENTRY"),
        v3("RANGE_ADD_ENTRY"),
        v3("BATCH_READ_ENTRY"),
    ],
    "nobody asks who we are": lambda ledger: [v3("AUTH", auth={"plugin": "sasl", "payload": b"hello"})],
    "TLS is off": lambda ledger: [v3("START_TLS", start_tls={})],
    "from version 3 to 2": lambda ledger: [add3(ledger, 0), v2(READ, ledger, 0)],
}

VERSION_2: dict[str, Talk] = {
    "add and read": lambda ledger: [
        *(add2(ledger, number) for number in (0, 1, 1, 5)),
        *(v2(READ, ledger, number) for number in (0, 5, 3, 6, -1)),
    ],
    "unknown ledger": lambda ledger: [v2(READ, ledger, 0), v2(READ, ledger, -1), batch2(ledger, 0)],
    "version 1": lambda ledger: [v2(ADD, KEY, entry(ledger, 0, -1), version=1), v2(READ, ledger, 0, version=1)],
    "version 0, which has its operation in another place": lambda ledger: [
        (ADD).to_bytes(4) + KEY + entry(ledger, 0, -1),
        (READ).to_bytes(4) + ledger.to_bytes(8) + bytes(8),
    ],
    "flags that nobody knows": lambda ledger: [add2(ledger, 0, flags=0x10), v2(READ, ledger, 0, flags=0x10)],
    "more bytes than there should be": lambda ledger: [add2(ledger, 0), v2(READ, ledger, 0, b"more")],
    "an entry below zero": lambda ledger: [add2(ledger, 0), v2(READ, ledger, -2)],
    "a newer version": lambda ledger: [v2(READ, ledger, 0, version=3)],
    "a newer version of an add": lambda ledger: [v2(ADD, KEY, entry(ledger, 0, -1), version=3)],
    "wrong key": lambda ledger: [
        add2(ledger, 0),
        add2(ledger, 1, key=WRONG_KEY),
        v2(READ, ledger, -1, WRONG_KEY, flags=FENCE),
        add2(ledger, 1),
    ],
    "fence": lambda ledger: [
        add2(ledger, 0),
        v2(READ, ledger, -1, KEY, flags=FENCE),
        add2(ledger, 1),
        add2(ledger, 1, flags=RECOVERY),
        v2(READ, ledger, 1, KEY, flags=FENCE),
        v2(READ, ledger, 2, KEY, flags=FENCE),
    ],
    "fence before the first entry": lambda ledger: [
        v2(READ, ledger, -1, KEY, flags=FENCE),
        add2(ledger, 0),
        v2(READ, ledger, 0),
    ],
    "batch": lambda ledger: [
        *(add2(ledger, number) for number in (0, 1, 2, 4)),
        batch2(ledger, 0),
        batch2(ledger, 0, count_max=2),
        batch2(ledger, 0, count_max=0),
        batch2(ledger, 0, count_max=-5),
        batch2(ledger, 1, bytes_max=1),
        batch2(ledger, 1, bytes_max=0),
        batch2(ledger, 0, bytes_max=36 + 2 * (39 + 4)),
        batch2(ledger, 0, bytes_max=36 + 2 * (39 + 4) - 1),
        batch2(ledger, 0, bytes_max=-7),
        batch2(ledger, 3),
    ],
    "a batch that fences": lambda ledger: [
        add2(ledger, 0),
        batch2(ledger, 0, key=WRONG_KEY),
        add2(ledger, 1),
        batch2(ledger, 0, key=KEY),
        add2(ledger, 2),
    ],
    "a batch that fences before the first entry": lambda ledger: [batch2(ledger, 0, key=KEY), add2(ledger, 0)],
    "a batch of a newer version": lambda ledger: [v2(BATCH, ledger, 0, 9, bytes(4), 1_000, version=3)],
    "an entry that is too short": lambda ledger: [v2(ADD, KEY, b"short")],
    "a read that is too short": lambda ledger: [v2(READ, ledger)],
    "an add that is too short": lambda ledger: [v2(ADD, b"short")],
    "a fence without a key": lambda ledger: [add2(ledger, 0), v2(READ, ledger, 0, flags=FENCE)],
    "nobody asks who we are": lambda ledger: [v2(AUTH, bytes.fromhex("0a04 7361736c 1200"))],
    "an introduction that makes no sense": lambda ledger: [v2(AUTH, b"\xff\xff")],
    "operations that version 2 lacks": lambda ledger: [v2(READ_LAC, ledger)],
    "an unknown operation": lambda ledger: [v2(99, ledger)],
    "an empty frame": lambda ledger: [b""],
    "another protocol": lambda ledger: [b"GET / HTTP/1.1\r\n\r\n"],
}

# Where we answer and Apache does worse, or worse things happen to who asked: frames, and what we say last.
ON_PURPOSE: dict[str, tuple[Talk, str]] = {
    "no message, which makes Apache close the connection": (lambda ledger: [v3("READ_ENTRY")], "status: EBADREQ"),
    "another message than the operation's": (
        lambda ledger: [v3("READ_LAC", force_ledger={"ledger_id": ledger})],
        "status: EBADREQ",
    ),
    "an entry below zero, which Apache stores": (lambda ledger: [add3(ledger, -5)], "status: EBADREQ"),
    "a ledger below zero, which Apache stores": (lambda ledger: [add3(-ledger, 0)], "status: EBADREQ"),
    "from version 2 to 3, which makes Apache close the connection": (
        lambda ledger: [add2(ledger, 0), read_lac3(ledger)],
        "status: EOK",
    ),
}

TALKS = [
    *(pytest.param(talk, id=f"v3 {name}") for name, talk in VERSION_3.items()),
    *(pytest.param(talk, id=f"v2 {name}") for name, talk in VERSION_2.items()),
]


@kinds("mixed")
@pytest.mark.parametrize("frames", TALKS)
async def test_both_bookies_give_the_same_answers(bookies: Bookies, open_client: OpenClient, frames: Talk) -> None:
    """Method: on a ledger that neither of them knows, so that both start from nothing."""
    client = await open_client(3)
    ledger = (await client.create(Secret())).id
    theirs, ours = bookies["apache-1"], bookies["quire-3"]
    assert await talk(ours.port, *frames(ledger)) == await talk(theirs.port, *frames(ledger))


@kinds("mixed")
@pytest.mark.parametrize(("frames", "answer"), [pytest.param(*value, id=name) for name, value in ON_PURPOSE.items()])
async def test_where_we_differ_on_purpose(bookies: Bookies, open_client: OpenClient, frames: Talk, answer: str) -> None:
    ledger = (await (await open_client(3)).create(Secret())).id
    ours = await talk(bookies["quire-3"].port, *frames(ledger))
    assert answer in ours[-1].splitlines()
    assert await talk(bookies["apache-1"].port, *frames(ledger)) != ours, "there is no difference any more"


@kinds("mixed")
async def test_a_frame_that_is_too_long_ends_the_connection(bookies: Bookies) -> None:
    for bookie in (bookies["apache-1"], bookies["quire-3"]):
        assert await talk(bookie.port, bytes(5 * 2**20)) == [CLOSED]
