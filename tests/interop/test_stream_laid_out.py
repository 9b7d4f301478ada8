"""Streams that our codecs lay out, node by node, entry by entry. Apache's DistributedLog reads and continues them."""

import asyncio
from dataclasses import replace

import pytest

from quire.codec.stream.compression import Compression
from quire.codec.stream.entries import decode_entry, encode_entry
from quire.codec.stream.limits import TXID_MAX
from quire.codec.stream.record_sets import encode_record_set
from quire.codec.stream.records import RECORD_SET, encode_control, encode_end_of_stream, encode_record, encode_records
from quire.codec.stream_metadata.binding import encode_binding
from quire.codec.stream_metadata.lock import LockOwner, encode_member, member_prefix, members_in_order
from quire.codec.stream_metadata.segment import UNASSIGNED_LSSN, Completion, Segment
from quire.codec.stream_metadata.tree import encode_allocation, encode_subscription
from quire.errors import NoSuchLedger
from quire.metadata.driver import ANY_VERSION
from quire.types import EntryId, Lssn
from tests.interop.ensembles import kinds
from tests.interop.ledger_client import Payloads
from tests.interop.peer import JavaError, JavaPeer
from tests.interop.raw_stream import (
    COMPLETED_AT_MS,
    PASSWORD,
    RawStreams,
    check_segments,
    entries_of,
    place,
)
from tests.interop.stream_facts import JavaRecord
from tests.interop.stream_peer import PROMPT, NamespaceSite, OpenNamespace, connect_namespace
from tests.support.waiting import eventually

PAYLOADS = Payloads("laid out by us")

one_kind = kinds("quire")
both_kinds = kinds("apache", "quire")


def txids(records: list[JavaRecord]) -> list[int]:
    """After a look at the payloads, which the txids tell."""
    assert all(record.payload == PAYLOADS[record.txid] for record in records)
    return [record.txid for record in records]


# --- Namespaces


@one_kind
@pytest.mark.parametrize("fields", ["all", "least"])
async def test_java_opens_a_namespace_that_we_bound(
    unbound: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams, fields: str
) -> None:
    binding = unbound.binding
    if fields == "least":
        binding = replace(binding, bk_servers_for_reader=None, dl_servers_for_writer=None, dl_servers_for_reader=None)
    await raw.store.create(unbound.path, encode_binding(binding))
    stream = (await open_namespace(**PROMPT)).stream("orders")
    async with stream.writer() as writer:
        await writer.write(PAYLOADS, 3, first_txid=1)
    assert txids(await stream.read_all()) == [1, 2, 3]


@one_kind
async def test_java_finds_the_binding_of_a_parent(java: JavaPeer, unbound: NamespaceSite, raw: RawStreams) -> None:
    site = replace(unbound, path=f"{unbound.path}/deep/inside")
    await raw.store.create(unbound.path, encode_binding(unbound.binding))
    await raw.store.create(site.path, parents=True)
    async with connect_namespace(java, site, **PROMPT) as namespace:
        stream = await namespace.create("orders")
        async with stream.writer() as writer:
            await writer.write(PAYLOADS, 3, first_txid=1)
        assert txids(await stream.read_all()) == [1, 2, 3]


# --- Completed segments


@both_kinds
@pytest.mark.parametrize("compression", list(Compression), ids=lambda compression: compression.name)
async def test_java_reads_a_completed_segment(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams, compression: Compression
) -> None:
    """Entries of one and of many records, with sets and control records between them, in blocks of our own LZ4."""
    ours = await raw.create("orders")
    members = [b"r0", b"", b"abc" * 500]
    runs = [
        [encode_records([PAYLOADS[1]], [1], position=1)],
        [encode_control(txid=1, position=1)],
        [
            encode_records([PAYLOADS[2], PAYLOADS[3]], [2, 3], position=2),
            encode_record(encode_record_set(members, compression=compression), txid=4, position=4, flags=RECORD_SET),
            encode_control(txid=4, position=6),
            encode_records([PAYLOADS[5]], [5], position=7),
        ],
        [encode_control(txid=5, position=7)],
    ]
    entries = [encode_entry(run, compression=compression) for run in runs]
    begun = Segment.begun(Lssn(1), await ours.ledger(entries), 1)
    completion = Completion(5, COMPLETED_AT_MS, 7, place(1, 2, 6))
    await ours.add(begun.completed(completion, start_sequence_id=100))
    java = (await open_namespace(**PROMPT)).stream("orders")
    expected = [
        JavaRecord(record.dlsn, record.txid, record.payload, record.position, 99 + record.position)
        for number, entry in enumerate(entries)
        for record in decode_entry(entry, lssn=Lssn(1), entry_id=EntryId(number))
        if not record.is_control
    ]
    assert len(expected) == 7
    assert await java.read_all() == (await java.read_sync()).records == expected
    assert await java.read_all(5) == expected[6:]
    assert await java.read_all(place(1, 2, 3)) == expected[4:]
    assert (await java.count(), await java.last_dlsn()) == (7, place(1, 2, 6))
    await check_segments(ours, await java.segments())
    async with java.writer() as writer:
        assert await writer.last_txid() == 5
        await writer.write(PAYLOADS, 1, first_txid=6)
    assert (await check_segments(ours, await java.segments()))[1].start_sequence_id == 107


@one_kind
async def test_java_honours_truncation_of_ours(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams
) -> None:
    ours = await raw.create("orders")
    segments = [
        await ours.segment_of(lssn, PAYLOADS, first_txid=3 * lssn - 2, count=3, start_sequence_id=3 * lssn - 3)
        for lssn in (1, 2, 3)
    ]
    await ours.add(segments[0].truncated())
    await ours.add(segments[1].truncated_before(place(2, 1, 0)))
    await ours.add(segments[2])
    java = (await open_namespace(**PROMPT)).stream("orders")
    assert txids(await java.read_all()) == txids((await java.read_sync()).records) == [5, 6, 7, 8, 9]
    assert txids(await java.read_all(place(2, 2, 0))) == [6, 7, 8, 9]
    assert txids(await java.read_all(1)) == [5, 6, 7, 8, 9]
    async with java.writer() as writer:
        await writer.truncate(place(2, 2, 0))
    after = await check_segments(ours, await java.segments())
    assert after == [segments[0].truncated(), segments[1].truncated_before(place(2, 2, 0)), segments[2]]
    await java.purge(4)
    assert [segment.lssn for segment in await java.segments()] == [2, 3]
    with pytest.raises(NoSuchLedger):
        await ours.entries(segments[0].ledger_id)


# --- Segments in progress

_ENDS = {
    # The entries after three records; what a reader sees of them; last txid, count and last place once recovered.
    "record": ([], 2, (3, 3, place(1, 2, 0))),
    "control": ([encode_control(txid=3, position=3)], 3, (3, 3, place(1, 3, 0))),
    "set": (
        [encode_record(encode_record_set([b"a", b"b"]), txid=4, position=4, flags=RECORD_SET)],
        3,
        (4, 5, place(1, 3, 1)),
    ),
    "end": ([encode_end_of_stream(position=3)], 3, (TXID_MAX, 3, place(1, 3, 0))),
}


@both_kinds
@pytest.mark.parametrize("end", list(_ENDS))
async def test_java_recovers_what_a_crashed_writer_left(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams, end: str
) -> None:
    """Nobody knows yet that its last entry was acknowledged: recovery has to find it."""
    more, visible, (last_txid, count, last) = _ENDS[end]
    ours = await raw.create("orders")
    entries = entries_of(PAYLOADS, first_txid=1, count=3, control=False) + [encode_entry([run]) for run in more]
    begun = Segment.begun(Lssn(1), await ours.open_ledger(entries), 1)
    await ours.add(begun)
    java = (await open_namespace(**PROMPT)).stream("orders")
    assert txids(await java.read_all()) == [*range(1, visible + 1)]
    await java.recover()
    (recovered,) = await check_segments(ours, await java.segments())
    assert recovered.completion is not None
    completion = Completion(last_txid, recovered.completion.completed_at_ms, count, last)
    assert recovered == begun.completed(completion, start_sequence_id=0)
    assert len(await java.read_all()) == count
    if end == "end":
        assert await java.has_end()
        return
    async with java.writer() as writer:
        await writer.write(PAYLOADS, 2, first_txid=5)
    assert (await check_segments(ours, await java.segments()))[1].start_sequence_id == count
    assert [record.sequence_id for record in await java.read_all()] == [*range(count + 2)]


@one_kind
async def test_java_deletes_a_segment_in_progress_without_entries(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams
) -> None:
    """And gives its LSSN to the next one."""
    ours = await raw.create("orders")
    await ours.add_full(1, PAYLOADS, first_txid=1, count=3, start_sequence_id=0)
    ledger = await ours.open_ledger([])
    await ours.add(Segment.begun(Lssn(2), ledger, 4))
    java = (await open_namespace(**PROMPT)).stream("orders")
    assert txids(await java.read_all()) == [1, 2, 3]
    async with java.writer() as writer:
        assert [segment.lssn for segment in await java.segments()] == [1]
        assert await ours.data(ours.paths.segments) == b"2"
        with pytest.raises(NoSuchLedger):
            await raw.ledgers.recover(ledger, password=PASSWORD)
        assert (await writer.write(PAYLOADS, 1, first_txid=4))[0] == place(2, 0, 0)
    assert txids(await java.read_all()) == [1, 2, 3, 4]


# --- Versions of the metadata


@one_kind
@pytest.mark.parametrize("version", [2, 3, 4])
async def test_java_reads_recovers_and_follows_older_versions(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams, version: int
) -> None:
    """One completed, one in progress, and then one of Java's own, which begins to count anew."""
    ours = await raw.create("orders")
    begun = []
    for lssn, first_txid in ((1, 1), (2, 4)):
        entries = entries_of(PAYLOADS, first_txid=first_txid, count=3, enveloped=version >= 4)
        ledger = await (ours.ledger(entries) if lssn == 1 else ours.open_ledger(entries))
        begun.append(replace(Segment.begun(Lssn(lssn), ledger, first_txid), version=version))
    await ours.add(begun[0].completed(Completion(3, COMPLETED_AT_MS, 3, place(1, 2, 0)), start_sequence_id=0))
    await ours.add(begun[1])
    java = (await open_namespace(**PROMPT)).stream("orders")
    assert txids(await java.read_all()) == [1, 2, 3, 4, 5, 6]
    async with java.writer() as writer:
        assert await writer.last_txid() == 6
        await writer.write(PAYLOADS, 1, first_txid=7)
    stored = await check_segments(ours, await java.segments())
    assert [segment.version for segment in stored] == [version, version, 5]
    assert stored[2].start_sequence_id == 0
    assert txids(await java.read_all()) == [1, 2, 3, 4, 5, 6, 7]


@one_kind
@pytest.mark.parametrize("state", ["completed", "in progress"])
async def test_java_takes_version_1_only_if_told_to(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams, state: str
) -> None:
    """Its segments have no LSSN, and names of another form."""
    ours = await raw.create("orders")
    entries = entries_of(PAYLOADS, first_txid=1, count=3, enveloped=False)
    if state == "completed":
        begun = replace(Segment.begun(UNASSIGNED_LSSN, await ours.ledger(entries), 1), version=1)
        completion = Completion(3, COMPLETED_AT_MS, 3, place(UNASSIGNED_LSSN, -1, -1))
        name = "logrecs_000000000000000001_000000000000000003"
        await ours.add(begun.completed(completion, start_sequence_id=0), name=name)
    else:
        begun = replace(Segment.begun(UNASSIGNED_LSSN, await ours.open_ledger(entries), 1), version=1)
        await ours.add(begun, name="inprogress_1")
    with pytest.raises(JavaError, match="UnsupportedMetadataVersionException"):
        await (await open_namespace(**PROMPT)).stream("orders").segments()
    java = (await open_namespace(**PROMPT, ledgerMetadataSkipMinVersionCheck=True)).stream("orders")
    assert txids(await java.read_all(place(0, 0, 0))) == txids(await java.read_all(1)) == [1, 2, 3]
    async with java.writer() as writer:
        assert await writer.write(PAYLOADS, 1, first_txid=4) == [place(1, 0, 0)]
    old, new = (await ours.segments()).values()
    assert (old.version, new.version) == (1, 5)
    assert old.completion is not None
    assert (old.completion.record_count, old.completion.last_dlsn) == (3, place(0, -1, -1))
    assert txids(await java.read_all(place(0, 0, 0))) == [1, 2, 3, 4]


# --- What stands around segments


@one_kind
async def test_java_deletes_the_ledger_that_is_left_in_allocation(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams
) -> None:
    """Whoever leaves the id of a ledger there that a segment uses loses that segment."""
    ours = await raw.create("orders")
    used = await ours.add_full(1, PAYLOADS, first_txid=1, count=3, start_sequence_id=0)
    await raw.store.set(ours.paths.allocation, encode_allocation(used.ledger_id), expected=ANY_VERSION)
    java = (await open_namespace(**PROMPT)).stream("orders")
    assert txids(await java.read_all()) == [1, 2, 3]
    async with java.writer() as writer:
        assert await ours.data(ours.paths.allocation) == encode_allocation(used.ledger_id), "opening alone does no harm"
        await writer.write(PAYLOADS, 1, first_txid=4)

    async def is_gone() -> bool:
        try:
            await ours.entries(used.ledger_id)
        except NoSuchLedger:
            return True
        return False

    await eventually(is_gone, what="the ledger is deleted")
    allocation = await raw.store.get(ours.paths.allocation)
    assert (allocation.data, allocation.stat.version) == (b"", 3)


@one_kind
async def test_java_waits_for_a_lock_of_ours(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams
) -> None:
    ours = await raw.create("orders")
    owner = LockOwner("b\u00fcro/10.0.0.1", int(raw.store.session))
    prefix = f"{ours.paths.lock}/{member_prefix(owner)}"
    member = await raw.store.create(prefix, encode_member(owner), ephemeral=True, sequential=True)
    hasty = (await open_namespace(**PROMPT, lockTimeoutSeconds=0)).stream("orders")
    with pytest.raises(JavaError, match=r"OwnershipAcquireFailedException.*b\u00fcro/10\.0\.0\.1"):
        await hasty.open_writer()
    java = (await open_namespace(**PROMPT)).stream("orders")
    opening = asyncio.create_task(java.open_writer())

    async def is_waiting() -> bool:
        names = (await raw.store.children(ours.paths.lock)).names
        assert f"{ours.paths.lock}/{members_in_order(names)[0]}" == member.path
        return len(names) == 2

    await eventually(is_waiting, what="Java stands behind us")
    assert not opening.done()
    await raw.store.delete(member.path, expected=ANY_VERSION)
    await (await opening).close()


@one_kind
async def test_java_goes_on_where_we_say_that_a_subscriber_was(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams
) -> None:
    ours = await raw.create("orders")
    await ours.add_full(1, PAYLOADS, first_txid=1, count=5, start_sequence_id=0)
    await raw.store.create(ours.paths.subscriber("billing"), encode_subscription(place(1, 3, 0)), parents=True)
    java = (await open_namespace(**PROMPT)).stream("orders")
    assert await java.subscriptions() == {"billing": place(1, 3, 0)}
    async with java.tail(None, locked=True, subscriber="billing") as tail:
        assert txids(await tail.wait_records(2)) == [4, 5]
