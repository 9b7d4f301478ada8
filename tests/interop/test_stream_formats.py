"""What Apache's DistributedLog leaves in ZooKeeper and in ledgers, read by our codecs, and made again byte for byte."""

from dataclasses import replace
from typing import Any

import pytest

from quire.codec.stream.entries import encode_entry
from quire.codec.stream.records import (
    encode_control,
    encode_records,
)
from quire.codec.stream_metadata.binding import NamespaceBinding, decode_binding, encode_binding
from quire.codec.stream_metadata.lock import LockOwner, decode_member, member_owner, member_prefix
from quire.codec.stream_metadata.segment import (
    Completion,
    Segment,
    Truncation,
)
from quire.codec.stream_metadata.tree import decode_subscription, encode_max_txid, encode_subscription
from quire.types import DigestType, Lssn, Quorum
from tests.interop.ensembles import kinds
from tests.interop.ledger_client import Payloads
from tests.interop.peer import JavaPeer
from tests.interop.raw_stream import PASSWORD, RawStreams, check_segments, place
from tests.interop.stream_peer import PROMPT, NamespaceSite, OpenNamespace, admin, bind, binding_bytes
from tests.interop.tree import tree_below

PAYLOADS = Payloads("written by Java")

one_kind = kinds("quire")


# --- Bindings


@one_kind
@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ([], {}),
        (["-i", "false", "-r", "true"], {"sanity_check_txid": False, "encode_region": True}),
        (["-bkzr", "other:1,third:2"], {"bk_servers_for_reader": "other:1,third:2"}),
        (["-dlzw", "w:1", "-dlzr", "r:2"], {"dl_servers_for_writer": "w:1", "dl_servers_for_reader": "r:2"}),
        (["-seqno", "7"], {"first_lssn": 7}),
        (["-fns"], {"federated": True}),
    ],
    ids=["plain", "flags", "reader of ledgers", "servers", "first LSSN", "federated"],
)
async def test_a_binding_of_apaches_command_is_what_we_would_write(
    java: JavaPeer, unbound: NamespaceSite, options: list[str], fields: dict[str, Any]
) -> None:
    stored = await bind(java, unbound, *options)
    expected = replace(unbound.binding, **fields)
    assert stored == encode_binding(expected)
    assert decode_binding(stored) == expected


@one_kind
async def test_apaches_command_binds_anew_and_unbinds(java: JavaPeer, namespace: NamespaceSite) -> None:
    words = ["bind", "-l", "/elsewhere", "-s", "other:1", "-f", namespace.uri]
    await admin(java, *words)
    assert decode_binding(await binding_bytes(java, namespace)) == NamespaceBinding(
        "other:1",
        "/elsewhere",
        bk_servers_for_reader="other:1",
        dl_servers_for_writer=namespace.address,
        dl_servers_for_reader=namespace.address,
    )
    await admin(java, "unbind", "-f", namespace.uri)
    assert await binding_bytes(java, namespace) == b""


# --- Nodes


@one_kind
@pytest.mark.parametrize("name", ["orders", "a/nested/stream"])
async def test_a_new_stream_has_the_nodes_that_we_would_create(
    namespace: NamespaceSite, open_namespace: OpenNamespace, name: str
) -> None:
    before = await tree_below(namespace.address, namespace.path)
    await (await open_namespace()).create(name)
    after = await tree_below(namespace.address, namespace.path)
    paths = namespace.paths(name)
    made = {path: data for path, (data, _) in after.items() if path not in before}
    assert made == dict.fromkeys(paths.ancestors(), b"") | dict(paths.initial_nodes())
    assert {stat.version for path, (_, stat) in after.items() if path in made} == {0}


@kinds("apache", "quire")
async def test_the_life_of_a_stream_leaves_these_nodes_and_entries(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams
) -> None:
    """Step by step, with the versions of the nodes: they are what a writer compares and sets."""
    java, ours = (await open_namespace()).stream("orders"), raw.stream("orders")

    async def numbers() -> dict[str, tuple[bytes, int]]:
        found: dict[str, tuple[bytes, int]] = {}
        for path in (ours.paths.max_txid, ours.paths.segments, ours.paths.allocation):
            node = await raw.store.get(path)
            found[path.rpartition("/")[2]] = (node.data, node.stat.version)
        return found

    writer = await java.open_sync_writer()
    assert await numbers() == {"maxtxid": (b"0", 0), "ledgers": (b"0", 0), "allocation": (b"", 0)}
    assert len((await raw.store.children(ours.paths.lock)).names) == 1
    await writer.write_records([(1001, b"hello"), (1002, b"world!")])
    await writer.flush()
    assert await numbers() == {"maxtxid": (b"0", 0), "ledgers": (b"1", 1), "allocation": (b"", 2)}
    (begun,) = await check_segments(ours, await java.segments())
    assert begun == Segment.begun(Lssn(1), begun.ledger_id, 1001)
    await writer.close()
    assert await numbers() == {"maxtxid": (b"1002", 1), "ledgers": (b"1", 2), "allocation": (b"", 2)}
    assert (await raw.store.children(ours.paths.lock)).names == ()
    (completed,) = await check_segments(ours, await java.segments())
    assert completed.completion is not None
    assert completed == begun.completed(
        Completion(1002, completed.completion.completed_at_ms, 2, place(1, 0, 1)), start_sequence_id=0
    )
    assert await ours.entries(begun.ledger_id) == [
        encode_entry([encode_records([b"hello", b"world!"], [1001, 1002], position=1)]),
        encode_entry([encode_control(txid=1002, position=2)]),
    ]
    ledger = (await raw.ledgers.ledgers_metadata.read(begun.ledger_id)).metadata
    assert (ledger.quorum, ledger.digest, ledger.password) == (Quorum(3, 3, 2), DigestType.CRC32, PASSWORD)
    assert ledger.custom == {}


@one_kind
async def test_java_recovers_a_segment_up_to_its_last_record_of_any_kind(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams
) -> None:
    java, ours = (await open_namespace(**PROMPT)).stream("orders"), raw.stream("orders")
    writer = await java.open_writer()
    await writer.write(PAYLOADS, 3, first_txid=5)
    control = await writer.write_control(8)
    await writer.abort()
    (begun,) = await ours.segments()
    assert begun.startswith("inprogress_")
    await java.recover()
    (recovered,) = await check_segments(ours, await java.segments())
    assert recovered.completion is not None
    assert (recovered.completion.last_txid, recovered.completion.record_count) == (8, 3)
    assert recovered.completion.last_dlsn >= control, "a control record is the last one"
    assert await ours.data(ours.paths.max_txid) == encode_max_txid(8)


@one_kind
@pytest.mark.parametrize("version", [2, 3, 4, 5])
async def test_older_versions_of_segments_are_read(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams, version: int
) -> None:
    settings = {**PROMPT, "ledgerMetadataLayoutVersion": version, "compressionType": "lz4"}
    java, ours = (await open_namespace(**settings)).stream("orders"), raw.stream("orders")
    async with java.writer() as writer:
        await writer.write(PAYLOADS, 3, first_txid=1)
        await writer.roll(3)
        await check_segments(ours, await java.segments())
        places = await writer.write(PAYLOADS, 3, first_txid=4, bulk=True)
        if version >= 3:
            await writer.truncate(place(1, 1, 0))
    segments = await check_segments(ours, await java.segments())
    assert {segment.version for segment in segments} == {version}
    assert [segment.is_partially_truncated for segment in segments] == [version >= 3, False]
    records = [record for record in await ours.records(segments[1]) if not record.is_control]
    assert [(record.dlsn, record.txid, record.payload) for record in records] == [
        (dlsn, txid, PAYLOADS[txid]) for dlsn, txid in zip(places, (4, 5, 6), strict=True)
    ]


@one_kind
async def test_segments_carry_the_region_of_their_writer(
    java: JavaPeer, unbound: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams
) -> None:
    await bind(java, unbound, "-r", "true", "-seqno", "9")
    stream = (await open_namespace(**PROMPT, region=14)).stream("orders")
    async with stream.writer() as writer:
        await writer.write(PAYLOADS, 1, first_txid=1)
    (segment,) = await check_segments(raw.stream("orders"), await stream.segments())
    assert (segment.region, segment.lssn) == (14, 9)


@one_kind
async def test_truncated_segments_are_stored_as_we_would(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams
) -> None:
    java, ours = (await open_namespace(**PROMPT)).stream("orders"), raw.stream("orders")
    async with java.writer() as writer:
        for first_txid in (1, 4, 7):
            await writer.write(PAYLOADS, 3, first_txid=first_txid)
            await writer.roll(first_txid + 2)
        before = await check_segments(ours, await java.segments())
        middle = await java.find(5)
        await writer.truncate(middle)
        after = await check_segments(ours, await java.segments())
        assert after == [before[0].truncated(), before[1].truncated_before(middle), *before[2:]]
        assert {segment.truncation for segment in after} == set(Truncation) - {Truncation.UNKNOWN}
        for name in await ours.segments():
            assert (await raw.store.get(ours.paths.segment(name))).stat.version == 0, "written anew, not over"


# --- Locks and subscribers


@one_kind
@pytest.mark.parametrize("client_id", ["host/10.0.0.1", "b\u00fcro ~*.-%+", "with_underscore", "\u4e2d\u6587"])
async def test_a_member_of_a_lock_bears_the_name_that_we_would_give_it(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams, client_id: str
) -> None:
    stream = (await open_namespace(**PROMPT, client_id=client_id)).stream("orders")
    async with stream.writer():
        paths = namespace.paths("orders")
        (name,) = (await raw.store.children(paths.lock)).names
        node = await raw.store.get(f"{paths.lock}/{name}")
        assert node.stat.owner is not None
        owner = LockOwner(client_id, int(node.stat.owner))
        assert name.startswith(member_prefix(owner))
        assert decode_member(node.data, owner.session_id) == owner
        assert member_owner(name) == (None if "_" in client_id else owner)


@one_kind
async def test_a_subscriber_is_stored_as_we_would(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams
) -> None:
    stream, paths = (await open_namespace(**PROMPT)).stream("orders"), namespace.paths("orders")
    async with stream.writer() as writer:
        places = await writer.write(PAYLOADS, 3, first_txid=1)
    await stream.subscribe("billing", places[1])
    stored = (await raw.store.get(paths.subscriber("billing"))).data
    assert stored == encode_subscription(places[1])
    assert decode_subscription(stored) == places[1]
    async with stream.tail(None, locked=True, subscriber="billing"):
        assert len((await raw.store.children(paths.subscriber_lock("billing"))).names) == 1
    async with stream.tail(place(1, 0, 0), locked=True, subscriber="new"):
        assert decode_subscription((await raw.store.get(paths.subscriber("new"))).data) is None
