"""Bits that flip in the files of a log in a folder: its only copy of an entry is damaged, and readers hear of it."""

import asyncio
from pathlib import Path

import pytest

import quire
from quire.errors import DamagedEntry
from quire.types import DLSN
from tests.support.bit_rot import flip_bit

DEADLINE_S = 60.0  # The client in a folder is patient for five minutes where bookies say nothing.


async def rotten(folder: Path, *numbers: int) -> list[DLSN]:
    """Ten records, of which these are damaged in the entry log."""
    async with quire.connect(f"file:{folder}") as client, client.open_writer("orders") as writer:
        places = [await writer.append(b"record %d." % number) for number in range(10)]
    for number in numbers:
        flip_bit(folder, b"record %d." % number)
    return places


async def test_a_reader_is_told_of_the_damage_behind_the_records_before_it(tmp_path: Path) -> None:
    places = await rotten(tmp_path, 4)
    async with asyncio.timeout(DEADLINE_S), quire.connect(f"file:{tmp_path}") as client:
        async with client.open_reader("orders") as reader:
            for number in range(4):
                assert (await anext(reader)).payload == b"record %d." % number
            for _ in range(2):
                with pytest.raises(DamagedEntry, match="no copy of entry") as damage:
                    await anext(reader)
            assert (damage.value.facts["lssn"], damage.value.facts["entry_id"]) == places[4][:2]
        async with client.open_reader("orders", start=places[5]) as reader:
            assert (await anext(reader)).payload == b"record 5."


@pytest.mark.parametrize("numbers", [(0,), (4, 5), (9,)])
async def test_a_reader_goes_on_behind_the_damage_if_it_is_told_to(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    await rotten(tmp_path, *numbers)
    async with asyncio.timeout(DEADLINE_S), quire.connect(f"file:{tmp_path}") as client:
        async with client.open_writer("orders") as writer:
            await writer.append(b"behind")
        async with client.open_reader("orders", skip_damaged=True) as reader:
            left = [b"record %d." % number for number in range(10) if number not in numbers]
            assert [(await anext(reader)).payload for _ in range(len(left) + 1)] == [*left, b"behind"]
            assert reader.statistics().damaged_entries == len(numbers)


async def test_a_search_for_a_txid_is_told_of_the_damage_too(tmp_path: Path) -> None:
    async with quire.connect(f"file:{tmp_path}") as client, client.open_writer("orders") as writer:
        for number in range(5):
            await writer.append(b"record %d." % number, txid=number)
    for number in range(5):
        flip_bit(tmp_path, b"record %d." % number)
    async with asyncio.timeout(DEADLINE_S), quire.connect(f"file:{tmp_path}") as client:
        with pytest.raises(DamagedEntry, match="of stream 'orders' cannot be read"):
            async with client.open_reader("orders", start=quire.txid(3)):
                raise AssertionError
