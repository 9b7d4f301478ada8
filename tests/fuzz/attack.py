"""One attack on a whole bookie in a simulation: bytes from a stranger, while an honest client works beside it.

    attack([frame, frame[:10], garbage])

Whatever the bytes are, the bookie must live on, the honest client must get the right answers, no exception may reach
the event loop or end a task, and when the stranger has gone nothing of it may be left. Everything repeats from the
pieces and the seed alone.
"""

import asyncio
import random
from collections.abc import Sequence

from quire.bookie.settings import ServerSettings
from quire.codec.wire import v2
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import (
    DEFERRED_SYNC,
    AddRequest,
    AuthMessage,
    BookieInfoRequest,
    ForceLedgerRequest,
    ListEntriesRequest,
    ReadFlag,
    ReadLacRequest,
    ReadRequest,
    RequestContent,
    StartTlsRequest,
)
from quire.types import EntryId, LedgerId
from tests.support.raw_bookie_client import (
    KEY,
    LAST,
    LEDGER,
    V2,
    V3,
    Answer,
    RawClient,
    World,
    bookie_settings,
    entry,
    leftovers,
    long_poll,
    with_bookie,
    write_lac,
)

HONEST_LEDGER = 2**40
HONEST_KEY = b"known to nobody else"
FRAME_BYTES_MAX = 20_000
HALF_FRAMES_BYTES_MAX = 50_000


def valid_frames() -> list[bytes]:
    """One of each kind of request, some with unusual ids."""
    contents: list[RequestContent] = [
        AddRequest(LEDGER, EntryId(3), KEY, entry(LEDGER, 3)),
        AddRequest(LEDGER, EntryId(4), KEY, entry(LEDGER, 4), DEFERRED_SYNC, True),
        ReadRequest(LEDGER, EntryId(0)),
        ReadRequest(LEDGER, LAST, KEY, flag=ReadFlag.FENCE_LEDGER),
        long_poll(-1, 50),
        long_poll(2**62, 2**62),
        long_poll(0, None, flag=None),
        write_lac(3),
        ReadLacRequest(LEDGER),
        ForceLedgerRequest(LEDGER),
        ListEntriesRequest(LEDGER),
        ListEntriesRequest(LedgerId(-1)),
        BookieInfoRequest(),
        AuthMessage("sasl", b"secret"),
        StartTlsRequest(),
    ]
    batch = v2.encode_batch_read_request(LEDGER, EntryId(0), 7, entries_max=10, bytes_max=1000)
    fencing_batch = v2.encode_batch_read_request(
        LedgerId(9), EntryId(0), 7, entries_max=0, bytes_max=2**40, flags=v2.DO_FENCING, master_key=KEY
    )
    return [
        *(V3.frame(content, priority=number % 2 == 1) for number, content in enumerate(contents)),
        *(V2.add(LEDGER, entry_id) for entry_id in range(3)),
        V2.add(LEDGER, 2**63 - 1, entry(LEDGER, 2**63 - 1, bytes(500)), recovery=True, priority=True),
        V2.add(-5, -7),
        V2.read(LEDGER, 1),
        V2.read(LEDGER, -1, priority=True),
        V2.read(8, -1, fence=KEY),
        batch,
        fencing_batch,
        v2.encode_auth(AuthMessage("sasl", b"")),
    ]


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """A frame that is no more what it was. Its length may be right again, so that what is inside gets looked at."""
    data = bytearray(frame)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data))
        match rng.randrange(6):
            case 0 | 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                data[at] = rng.choice((0, 1, 2, 0x0A, 0x7F, 0x80, 0xFF))
            case 3:
                del data[at:]
            case 4:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 30)))
            case _:
                del data[at : at + rng.randrange(1, 9)]
        if not data:
            return b"\0"
    if rng.random() < 0.8:
        return (len(data) - 4).to_bytes(4, "big") + data[4:] if len(data) > 4 else bytes(data)
    return bytes(data)


def attack(pieces: Sequence[bytes], *, seed: int = 0) -> None:
    """Send `pieces` one after the other, each when the one before has arrived or not, as the seed says."""

    async def check(world: World) -> None:
        stranger, honest = world.client, await world.connect()
        working = asyncio.ensure_future(work(honest))
        for piece in pieces:
            if stranger.is_lost:
                stranger = await world.connect()
            stranger.send(piece)
            await world.pass_time(world.sim.rng.choice((0.0, 0.0, 0.02)))
            assert world.service._half_bytes <= HALF_FRAMES_BYTES_MAX + FRAME_BYTES_MAX
        await working
        await world.pass_time(0.1)
        stranger.close()
        await world.until(lambda: len(world.service.connections) == 1)
        await world.until(lambda: {*leftovers(world.service)} <= {"connections"})
        assert (await honest.read(V3, HONEST_LEDGER, 0)).body == entry(HONEST_LEDGER, 0)

    server = ServerSettings(frame_bytes_max=FRAME_BYTES_MAX, half_frames_bytes_max=HALF_FRAMES_BYTES_MAX)
    with_bookie(check, seed=seed, settings=bookie_settings(server=server))


async def work(client: RawClient) -> None:
    """Adds and reads in both versions, each answered as it should be."""
    for entry_id in range(6):
        version = V2 if entry_id % 2 else V3
        added = await client.add(version, HONEST_LEDGER, entry_id, key=HONEST_KEY)
        assert added == Answer(Status.EOK, HONEST_LEDGER, entry_id)
        found = await client.read(version, HONEST_LEDGER, entry_id)
        assert found == Answer(Status.EOK, HONEST_LEDGER, entry_id, entry(HONEST_LEDGER, entry_id))
