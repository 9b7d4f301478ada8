"""Files of segments: what is written is read, and anything else is noticed."""

import hashlib
import io
import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.codec.cold import ColdFile
from quire.cold import ColdStores
from quire.cold.blocking import at_once
from quire.cold.parquet_reader import StoredSegmentFile, open_stored
from quire.cold.parquet_rows import COLUMNS, Rows, checksum, schema
from quire.cold.parquet_writer import SegmentFile, verify_stored
from quire.errors import ColdObjectExists, DamagedColdFile, MissingExtra
from quire.types import Lssn

LSSN = Lssn(3)
NAME = "ns/s/seg-000000000003/x.parquet"

entries = st.lists(
    st.tuples(
        st.integers(1, 3), st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=300)), min_size=1, max_size=4)
    ),
    max_size=30,
)


def rows_of(drawn: list[tuple[int, list[tuple[int, bytes]]]]) -> list[Rows]:
    """Entries with gaps between them, and slots and txids that never decrease."""
    found, entry_id, txid = [], -1, 0
    for gap, records in drawn:
        entry_id += gap
        slots = [2 * place for place in range(len(records))]
        txids = []
        for step, _ in records:
            txid += step
            txids.append(txid)
        found.append(Rows([entry_id] * len(records), slots, txids, [payload for _, payload in records]))
    return found


async def written(stores: ColdStores, parts: list[Rows], *, group_bytes: int = 200, ends: int = 500) -> ColdFile:
    file = SegmentFile(LSSN, stream="s", run=at_once, group_bytes=group_bytes)
    try:
        for part in parts:
            await file.add(part)
        return await file.store(stores.at("memory:a"), NAME, entries=ends)
    finally:
        file.close()


async def opened(stores: ColdStores, file: ColdFile) -> StoredSegmentFile:
    return await open_stored(stores.at("memory:a"), file, LSSN, at_once)


async def first_group(stores: ColdStores, file: ColdFile) -> Rows:
    segment = await opened(stores, file)
    return await segment.read(segment.groups[0])


def own_stores() -> ColdStores:
    return ColdStores(run=at_once, memory={})


@given(entries)
@settings(max_examples=30, deadline=None)
async def test_rows_come_back_from_any_entry_on(drawn: list[tuple[int, list[tuple[int, bytes]]]]) -> None:
    stores, parts = own_stores(), rows_of(drawn)
    file = await written(stores, parts)
    whole = [row for part in parts for row in zip(*part, strict=True)]
    assert (file.rows, file.entries) == (len(whole), 500)
    segment = await opened(stores, file)
    for first in (0, 5, 1000):
        wanted = [row for row in whole if row[0] >= first]
        groups = segment.groups_from(first)
        found = [row for group in groups for row in zip(*await segment.read(group), strict=True)]
        assert found[len(found) - len(wanted) :] == wanted
        assert len(found) - len(wanted) <= (groups[0].rows if groups else 0), "only the first group has others"
    assert [group.first_row for group in segment.groups] == [
        sum(group.rows for group in segment.groups[:number]) for number in range(len(segment.groups))
    ]
    for group, after in zip(segment.groups, segment.groups[1:], strict=False):
        assert group.last_entry < after.first_entry, "row groups end where entries end"


async def test_any_program_can_read_the_file() -> None:
    stores = own_stores()
    await written(stores, [Rows([1, 1], [0, 2], [5, 6], [b"a", b""])])
    table = pq.read_table(io.BytesIO(stores._memory["memory:a"][NAME]))
    assert table.schema.names == list(COLUMNS)
    assert table.to_pylist()[1] == {"segment": 3, "entry": 1, "slot": 2, "txid": 6, "payload": b""}
    facts = pq.read_metadata(io.BytesIO(stores._memory["memory:a"][NAME])).metadata
    assert facts[b"quire.stream"] == b"s"
    assert facts[b"quire.entries"] == b"500"


async def test_every_byte_that_changes_is_noticed() -> None:
    """In the pages, in the footer, and anywhere else where it matters; what does not matter reads the same."""
    stores = own_stores()
    parts = [Rows([n], [0], [n], [b"payload %d" % n * 10]) for n in range(12)]
    file = await written(stores, parts, group_bytes=300)
    objects = stores._memory["memory:a"]
    good, unnoticed = objects[NAME], 0
    whole = [row for part in parts for row in zip(*part, strict=True)]
    for at in range(4, len(good), 7):
        objects[NAME] = good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :]
        with pytest.raises(DamagedColdFile):
            await verify_stored(stores.at("memory:a"), file, at_once)
        try:
            segment = await opened(stores, file)
            found = [row for group in segment.groups for row in zip(*await segment.read(group), strict=True)]
        except DamagedColdFile as error:
            assert error.facts["file"] == NAME
            assert error.facts["lssn"] == LSSN
        else:
            assert found == whole
            unnoticed += 1
    assert unnoticed < len(good) // 7 // 4, "page headers have fields that mean nothing"


async def test_a_file_in_the_place_of_another_is_noticed() -> None:
    """Also one that is a good file of the same segment: it is not the one that was archived."""
    stores, other = own_stores(), own_stores()
    file = await written(stores, [Rows([1], [0], [5], [b"a"])])
    await written(other, [Rows([1], [0], [5], [b"b"])])
    objects = stores._memory["memory:a"]
    for replacement in (other._memory["memory:a"][NAME], b"", b"PAR1", b"x" * file.size_bytes, objects[NAME][:-1]):
        objects[NAME] = replacement
        with pytest.raises(DamagedColdFile, match="footer"):
            await opened(stores, file)
        with pytest.raises(DamagedColdFile):
            await verify_stored(stores.at("memory:a"), file, at_once)
    del objects[NAME]
    with pytest.raises(DamagedColdFile, match="missing"):
        await opened(stores, file)
    with pytest.raises(DamagedColdFile, match="missing"):
        await verify_stored(stores.at("memory:a"), file, at_once)


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"quire.format": "2", "quire.lssn": "3", "quire.groups": "0" * 64}, "format"),
        ({"quire.lssn": "3", "quire.groups": "0" * 64}, "format"),
        ({"quire.format": "1", "quire.lssn": "4", "quire.groups": "0" * 64}, "segment"),
        ({"quire.format": "1", "quire.lssn": "3", "quire.groups": ""}, "rows"),
        ({"quire.format": "1", "quire.lssn": "3", "quire.groups": "0" * 64}, "values"),
    ],
)
async def test_a_file_that_says_something_else_is_refused(facts: dict[str, str], problem: str) -> None:
    """Even if the metadata says that it is the right one."""
    stores, sink = own_stores(), io.BytesIO()
    columns = [pa.array([number], pa.int64()) for number in (3, 1, 0, 5)]
    table = pa.Table.from_arrays([*columns, pa.array([b"a"], pa.binary())], schema=schema())
    with pq.ParquetWriter(sink, schema()) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(facts)
    data = sink.getvalue()
    stores.at("memory:a")
    stores._memory["memory:a"][NAME] = data
    footer_bytes = int.from_bytes(data[-8:-4], "little") + 8
    digests = [hashlib.sha256(part).hexdigest() for part in (data, data[-footer_bytes:])]
    file = ColdFile("memory:a", NAME, len(data), digests[0], footer_bytes, digests[1], 1, 2)
    with pytest.raises(DamagedColdFile, match=problem):
        await first_group(stores, file)
    with pytest.raises(DamagedColdFile):
        await opened(stores, replace(file, rows=2))


async def test_a_name_that_is_taken_is_left_alone() -> None:
    stores = own_stores()
    first = await written(stores, [Rows([1], [0], [5], [b"a"])])
    with pytest.raises(ColdObjectExists):
        await written(stores, [Rows([1], [0], [5], [b"b"])])
    await verify_stored(stores.at("memory:a"), first, at_once)


def test_the_checksum_is_that_of_the_values() -> None:
    """Not of how they lie in memory: chunks and slices do not matter."""
    columns = [pa.array(range(number, number + 10), pa.int64()) for number in range(4)]
    table = pa.Table.from_arrays([*columns, pa.array([b"%d" % n * n for n in range(10)])], schema=schema())
    parts = pa.concat_tables([table.slice(0, 3), table.slice(3, 0), table.slice(3)])
    assert checksum(parts) == checksum(table)
    assert checksum(table.slice(2, 5)) == checksum(pa.Table.from_pylist(table.slice(2, 5).to_pylist(), schema=schema()))
    assert checksum(table.slice(0, 9)) != checksum(table)
    assert checksum(table.slice(0, 0)) != checksum(table)


async def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = own_stores()
    file = await written(stores, [Rows([1], [0], [5], [b"a"])])
    for name in [name for name in sys.modules if name.startswith("pyarrow")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match="pyarrow") as error:
        await opened(stores, file)
    assert "quirelog[cold]" in error.value.hint
    with pytest.raises(MissingExtra):
        SegmentFile(LSSN, stream="s", run=at_once)
