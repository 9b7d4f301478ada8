"""`docs/reference/gateway.md` is followed, as a reader would who has curl."""

from pathlib import Path
from typing import Final

import pytest
from tests.e2e.document_runner import Reader
from tests.support.documents import ROOT, read_blocks
from tests.support.servers.ports import free_port

from quire.proxy.gateway.app import paths
from quire.proxy.gateway.handlers import Handlers
from quire.proxy.gateway.settings import GatewaySettings

DOCUMENT: Final = "docs/reference/gateway.md"


@pytest.mark.timeout(300)
def test_what_the_document_shows_is_what_happens(tmp_path: Path) -> None:
    reader = Reader(tmp_path, stand_ins={"8400": str(free_port())}, not_run={})
    reader.follow(read_blocks(DOCUMENT))
    assert len(reader.commands) > 20


def test_every_path_is_in_the_document() -> None:
    text = (ROOT / DOCUMENT).read_text()
    for path in paths(Handlers({}, GatewaySettings())):
        end = path.removeprefix("/v1/{namespace}/streams/{stream}").removeprefix("/v1/{namespace}/streams")
        assert f"{end}`" in text or f"{end}?" in text or f"{end} " in text, path
