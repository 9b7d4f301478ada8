"""What every cold storage does: see `quire.cold.store`."""

import asyncio
import io
import os
from pathlib import Path

import pytest

from quire.cold import ColdStore, ColdStores
from quire.cold.s3_store import ONE_REQUEST_BYTES_MAX
from quire.errors import ColdObjectExists, ColdUnavailable, NoSuchColdObject, RequestDenied


async def put(store: ColdStore, name: str, data: bytes) -> None:
    await store.create(name, io.BytesIO(data), len(data))


async def test_what_was_created_is_read_in_any_ranges(store: ColdStore) -> None:
    data = bytes(range(256)) * 40
    await put(store, "ns/s/seg-1/a.parquet", data)
    assert await store.size("ns/s/seg-1/a.parquet") == len(data)
    for start, end in ((0, len(data)), (0, 1), (7, 300), (len(data) - 5, len(data)), (len(data) - 5, len(data) + 100)):
        assert await store.read("ns/s/seg-1/a.parquet", start, end) == data[start:end]
    assert await store.read("ns/s/seg-1/a.parquet", 5, 5) == b""


async def test_content_is_stored_from_its_beginning(store: ColdStore) -> None:
    content = io.BytesIO(b"0123456789")
    content.seek(6)
    await store.create("a", content, 10)
    assert await store.read("a", 0, 20) == b"0123456789"


async def test_a_name_that_is_taken_stays_as_it_is(store: ColdStore) -> None:
    await put(store, "x/a", b"first")
    with pytest.raises(ColdObjectExists):
        await put(store, "x/a", b"second")
    assert await store.read("x/a", 0, 100) == b"first"
    assert await store.names() == ["x/a"]


async def test_of_many_who_create_an_object_one_does(store: ColdStore) -> None:
    results = await asyncio.gather(*(put(store, "a", b"%d" % n * 1000) for n in range(8)), return_exceptions=True)
    assert sum(result is None for result in results) == 1
    assert all(result is None or isinstance(result, ColdObjectExists) for result in results), results
    winner = results.index(None)
    assert await store.read("a", 0, 10_000) == b"%d" % winner * 1000


async def test_what_is_not_there_is_told_so(store: ColdStore) -> None:
    await put(store, "there/a", b"1")
    for call in (store.read("missing/a", 0, 10), store.size("missing/a")):
        with pytest.raises(NoSuchColdObject) as error:
            await call
        assert error.value.facts["object"] == "missing/a"


async def test_deleting_twice_is_fine(store: ColdStore) -> None:
    await put(store, "x/y/a", b"1")
    await store.delete("x/y/a")
    await store.delete("x/y/a")
    await store.delete("never/was")
    with pytest.raises(NoSuchColdObject):
        await store.size("x/y/a")
    await put(store, "x/y/a", b"2")
    assert await store.read("x/y/a", 0, 1) == b"2"


async def test_names_are_listed_below_whole_parts(store: ColdStore) -> None:
    assert await store.names() == []
    for name in ("n/s/seg-1/b", "n/s/seg-1/a", "n/s2/seg-1/a", "n/s/seg-2/a"):
        await put(store, name, b"x")
    assert await store.names() == ["n/s/seg-1/a", "n/s/seg-1/b", "n/s/seg-2/a", "n/s2/seg-1/a"]
    assert await store.names("n/s") == ["n/s/seg-1/a", "n/s/seg-1/b", "n/s/seg-2/a"]
    assert await store.names("nothing") == []


async def test_two_roots_do_not_see_each_other(root: str, stores: ColdStores) -> None:
    base, query = root.partition("?")[::2]
    other = stores.at(f"{base}-other?{query}" if query else f"{base}-other")
    await put(stores.at(root), "a", b"1")
    assert await other.names() == []


async def test_an_object_of_several_requests_is_stored_whole(store: ColdStore) -> None:
    data = os.urandom(1 << 20) * (ONE_REQUEST_BYTES_MAX // (1 << 20) + 1)
    await put(store, "large", data)
    assert await store.size("large") == len(data)
    assert await store.read("large", len(data) - 100, len(data)) == data[-100:]
    with pytest.raises(ColdObjectExists):
        await put(store, "large", data)


@pytest.mark.parametrize("uri", ["s3://archive/x?endpoint=http://127.0.0.1:1", "webhdfs://127.0.0.1:1/x"])
async def test_a_store_that_nobody_serves_is_unavailable(uri: str) -> None:
    stores = ColdStores(s3_options={"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}, timeout_s=3)
    store = stores.at(uri)
    for call in (put(store, "a", b"1"), store.read("a", 0, 1), store.size("a"), store.names()):
        with pytest.raises(ColdUnavailable) as error:
            await call
        assert error.value.retryable
    await stores.aclose()


async def test_a_folder_that_may_not_be_written_is_denied(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        return  # Nothing is denied to root.
    tmp_path.chmod(0o500)
    with pytest.raises(RequestDenied):
        await put(ColdStores().at(f"file:{tmp_path}/archive"), "a", b"1")
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("root", ["s3"], indirect=True)
async def test_a_bucket_that_is_missing_says_nothing_of_what_was_in_it(root: str, stores: ColdStores) -> None:
    store = stores.at(root.replace("s3://archive/", "s3://never-made/"))
    for call in (store.read, store.delete):
        with pytest.raises(ColdUnavailable, match="bucket"):
            await (call("x/a", 0, 10) if call == store.read else call("x/a"))  # type: ignore[call-arg]
