"""Ledger metadata written by one side and read by the other, in each layout, byte for byte where both write."""

import asyncio
import base64
import random
import re

import pytest

from quire.codec.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from quire.errors import DamagedMetadata, LedgerExists, NoSuchLedger
from quire.metadata import Cluster
from quire.types import LedgerId, LedgerMetadata
from tests.interop.ledger_samples import facts, order, random_metadata, samples_with_ids, told
from tests.interop.peer import ApacheCluster, JavaError, JavaPeer

RANDOM_LEDGERS = 150  # For each format version and direction.

HEADER = b"BookieMetadataFormatVersion\t"

# The parts of a small closed ledger in format version 3.
SIZES = bytes.fromhex("08011001180020ffffffffffffffffff01")
CLOSED, STATE_9 = bytes.fromhex("2803"), bytes.fromhex("2809")
FRAGMENT = bytes.fromhex("32120a0e3132372e302e302e313a333138311000")
REST = bytes.fromhex("38014202707748016000")


def version_3(*parts: bytes, missing: int = 0) -> bytes:
    """A stored ledger of these parts; its length announces `missing` bytes more than there are."""
    body = b"".join(parts)
    return HEADER + b"3\n" + bytes([len(body) + missing]) + body


def as_4_18_prints_it(data: bytes, release: str) -> bytes:
    """Text that an older release printed has short escapes for the bytes 7 and 11; otherwise it is the same."""
    if release.startswith("4.18") or not data.startswith(HEADER + b"2\n"):
        return data
    escapes = {rb"\a": rb"\007", rb"\v": rb"\013"}
    return re.sub(rb"\\.", lambda match: escapes.get(match[0], match[0]), data)


async def test_java_reads_every_ledger_that_we_wrote(cluster: Cluster, apache: ApacheCluster) -> None:
    for number, metadata in samples_with_ids():
        ours = await cluster.ledgers.create(metadata, with_id=number)
        java = await apache.call("ledger.read", ledger=number)
        java_facts, java_ctime_ms = told(java["metadata"])
        assert java_facts == facts(ours.metadata), number
        assert java["version"] == ours.version == 0
        if metadata.format_version > 1:
            assert java_ctime_ms == (await cluster.ledgers.read(ours.ledger_id)).created_ms


async def test_java_lists_the_ledgers_that_we_wrote_in_our_order(cluster: Cluster, apache: ApacheCluster) -> None:
    assert await apache.call("ledger.list") == []
    for number, metadata in samples_with_ids():
        await cluster.ledgers.create(metadata, with_id=number)
    expected = sorted(number for number, _ in samples_with_ids())
    assert await apache.call("ledger.list") == expected
    assert [ledger async for ledger in cluster.ledgers.scan()] == expected


async def test_we_read_and_list_every_ledger_that_java_wrote(
    java: JavaPeer, cluster: Cluster, apache: ApacheCluster
) -> None:
    """Re-encoded by us, what Java stored comes out byte for byte: an update by us changes only what it means to."""
    release = await java.call("about")
    for number, metadata in samples_with_ids():
        created = await apache.call("ledger.create", ledger=number, metadata=order(metadata))
        stored = await cluster.ledgers.read(LedgerId(number))
        java_facts, _ = told(created["metadata"])
        assert facts(stored.metadata) == java_facts, number
        assert facts(stored.metadata) == {**facts(metadata), "ctoken": stored.metadata.ctoken}
        assert stored.version == created["version"]
        assert stored.metadata.ctime_ms == metadata.ctime_ms
        data = (await cluster.store.get(cluster.ledgers.path(stored.ledger_id))).data
        assert encode_ledger_metadata(stored.metadata) == as_4_18_prints_it(data, release), number
    expected = sorted(number for number, _ in samples_with_ids())
    assert [ledger async for ledger in cluster.ledgers.scan()] == expected
    assert await apache.call("ledger.list") == expected


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_both_sides_print_any_ledger_alike_and_read_each_other(java: JavaPeer, version: int) -> None:
    release = await java.call("about")
    rng = random.Random(version)

    async def check(number: int, metadata: LedgerMetadata) -> None:
        ours = encode_ledger_metadata(metadata)
        theirs = base64.b64decode(await java.call("ledger.encode", ledger=number, metadata=order(metadata)))
        assert as_4_18_prints_it(theirs, release) == ours
        assert decode_ledger_metadata(theirs) == metadata
        read = await java.call("ledger.decode", ledger=number, bytes=base64.b64encode(ours).decode())
        java_facts, java_ctime_ms = told(read)
        assert java_facts == facts(metadata)
        assert java_ctime_ms == (-1 if metadata.ctime_ms is None else metadata.ctime_ms)

    for number in range(RANDOM_LEDGERS):
        await check(number, random_metadata(rng, version))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing is stored"),
        pytest.param(b"BookieMetadataFormatVersion\t", id="the header ends early"),
        pytest.param(b"BookieMetadataFormatVersion\t4\n", id="no release writes version 4"),
        pytest.param(b"BookieMetadataFormatVersion\t3\r\n", id="the first line ends in CR LF"),
        pytest.param(b"BookieMetadataFormatVersion\t1000000003\n", id="the version has ten digits"),
        pytest.param(b"BookieMetadataFormatVersion\t3\n", id="the message is missing"),
        pytest.param(version_3(SIZES, CLOSED, REST), id="there is no fragment"),
        pytest.param(version_3(SIZES, CLOSED, FRAGMENT, FRAGMENT, REST), id="two fragments begin at one entry"),
        pytest.param(version_3(SIZES, STATE_9, FRAGMENT, REST), id="there is no state 9"),
        pytest.param(version_3(SIZES, CLOSED, FRAGMENT, REST[:-1], missing=1), id="the message ends within a field"),
        pytest.param(HEADER + b"2\nquorumSize: 1\nensembleSize: 1\n", id="required fields are missing"),
        pytest.param(HEADER + b"1\n2\n2\n0\n\n", id="a line is blank"),
        pytest.param(HEADER + b"1\n3\n2\n0\n0\tbk1:3181\tbk2:3181\n", id="the write quorum exceeds the ensemble"),
        pytest.param(HEADER + b"1\n1\n1\n0\n0\tb/1\n", id="a bookie's id is illegal"),
    ],
)
async def test_what_java_cannot_read_we_do_not_read_either(java: JavaPeer, data: bytes) -> None:
    with pytest.raises(JavaError):
        await java.call("ledger.decode", ledger=1, bytes=base64.b64encode(data).decode())
    with pytest.raises(DamagedMetadata):
        decode_ledger_metadata(data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(version_3(SIZES, CLOSED, FRAGMENT, REST), id="as it should be"),
        pytest.param(
            version_3(SIZES, CLOSED, FRAGMENT, REST, bytes.fromhex("a00605")), id="a later release added field 100"
        ),
        pytest.param(version_3(SIZES, CLOSED, FRAGMENT, REST) + b"more", id="bytes follow the message"),
        pytest.param(
            HEADER + b"2\nquorumSize: 1 ensembleSize: 1 length: 7 lastEntryId: 3 state: CLOSED # said 4.2\n"
            b"segment < ensembleMember: 'bk1' ':3181' firstEntryId: 0 > digestType: CRC32 password: '\\x70\\167'",
            id="no ack quorum, and the text was written by hand",
        ),
        pytest.param(HEADER + b"1\n1\n1\n5\n0\tbk1:3181\n3\tCLOSED\nmore", id="lines follow the last one"),
    ],
)
async def test_what_java_reads_generously_we_read_in_the_same_way(java: JavaPeer, data: bytes) -> None:
    read = await java.call("ledger.decode", ledger=1, bytes=base64.b64encode(data).decode())
    assert told(read)[0] == facts(decode_ledger_metadata(data))


async def test_ledgers_that_one_side_removes_are_gone_for_the_other(cluster: Cluster, apache: ApacheCluster) -> None:
    """Also the folders above them: each side creates ledgers where the other one has just tidied up."""
    (first, metadata), (second, _) = samples_with_ids()[:2]
    ours = await cluster.ledgers.create(metadata, with_id=first)
    await apache.call("ledger.remove", ledger=first, version=ours.version)
    with pytest.raises(NoSuchLedger):
        await cluster.ledgers.read(ours.ledger_id)
    names = (await cluster.store.children(cluster.uri.root)).names
    assert set(names) == {"INSTANCEID", "LAYOUT", "available"}

    await apache.call("ledger.create", ledger=second, metadata=order(metadata))
    await cluster.ledgers.remove(LedgerId(second))
    assert (await cluster.store.children(cluster.uri.root)).names == names
    with pytest.raises(JavaError) as missing:
        await apache.call("ledger.read", ledger=second)
    assert missing.value.name == "BKNoSuchLedgerExistsOnMetadataServerException"
    await apache.call("ledger.remove", ledger=second, version=0)  # Gone already is good enough, on both sides.
    await cluster.ledgers.remove(LedgerId(first))


async def test_of_two_creators_of_one_ledger_exactly_one_succeeds(cluster: Cluster, apache: ApacheCluster) -> None:
    metadata = next(metadata for _, metadata in samples_with_ids() if metadata.format_version == 3)

    async def ours(number: int) -> bool:
        try:
            await cluster.ledgers.create(metadata, with_id=number)
        except LedgerExists:
            return False
        return True

    async def theirs(number: int) -> bool:
        try:
            await apache.call("ledger.create", ledger=number, metadata=order(metadata))
        except JavaError as error:
            if error.name != "BKLedgerExistException":
                raise
            return False
        return True

    for number in range(30):
        racers = [ours(number), theirs(number)]
        assert sorted(await asyncio.gather(*(racers if number % 2 else reversed(racers)))) == [False, True]
