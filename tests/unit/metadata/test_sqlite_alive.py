"""The files of sessions: those of dead processes are swept, and what others left there is not touched."""

from pathlib import Path

import pytest

from quire.metadata.driver import SessionId
from quire.metadata.drivers._sqlite_alive import SessionFiles


@pytest.mark.parametrize("name", [".DS_Store", "1f.swp", "0x1f", "01F"])
def test_a_sweep_leaves_alone_what_is_no_session(tmp_path: Path, name: str) -> None:
    files = SessionFiles(tmp_path / "m.db")
    files.hold(SessionId(1))
    folder = tmp_path / "m.db-sessions"
    (folder / name).touch()
    (folder / "2f").touch()
    files.sweep([])
    assert {each.name for each in folder.iterdir()} == {name, "1"}
    files.release(SessionId(1))
