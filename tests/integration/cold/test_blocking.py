"""Cold storage that hangs, in real threads: whoever needs something else does not wait for it."""

import asyncio
import io
import threading
from pathlib import Path
from unittest.mock import patch

import pytest

from quire.cold import ColdStores
from quire.cold.file_store import FileStore
from quire.errors import ColdUnavailable

pytestmark = pytest.mark.extended


async def test_a_folder_that_hangs_keeps_neither_other_roots_nor_decoding_waiting(tmp_path: Path) -> None:
    """More calls than a pool has threads hang in one folder, as they do where a server of NFS is gone."""
    roots, patient = (f"file:{tmp_path}/dead", f"file:{tmp_path}/good"), ColdStores()
    for root in roots:
        await patient.at(root).create("a/b", io.BytesIO(b"content"), 7)
    await patient.aclose()
    stores, gone, plain = ColdStores(timeout_s=2.0), threading.Event(), FileStore._read
    dead, good = map(stores.at, roots)

    def hanging(self: FileStore, name: str, start: int, end: int) -> bytes:
        if self is dead:
            gone.wait(120)
        return plain(self, name, start, end)

    with patch.object(FileStore, "_read", hanging):
        try:
            calls = [dead.read("a/b", 0, 7) for _ in range(20)]
            assert {type(each) for each in await asyncio.gather(*calls, return_exceptions=True)} == {ColdUnavailable}
            async with asyncio.timeout(60):
                assert await good.read("a/b", 0, 7) == b"content"
                assert await stores.run(lambda: "decoded") == "decoded"
            with pytest.raises(ColdUnavailable):
                await dead.size("a/b")
        finally:
            gone.set()
    await stores.aclose()
    async with asyncio.timeout(60):
        assert await stores.run(lambda: "again") == "again"
        assert await stores.at(f"file:{tmp_path}/dead").read("a/b", 0, 7) == b"content"
    await stores.aclose()
