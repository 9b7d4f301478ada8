"""What `quire up` shows when everything runs: every address that is served, and commands that work as they stand."""

from dataclasses import replace
from pathlib import Path

import pytest

from quire.app.cluster_events import ServiceShown, Started
from quire.cli.local_output import Lines

BOOKIE = ServiceShown("bookie-1", "bookie", "up", "127.0.0.1:3181", "127.0.0.1:8101", 11, "/data/logs/bookie-1.log")
WRITE_PROXY = ServiceShown(
    "write-proxy-1",
    "write-proxy",
    "up",
    "127.0.0.1:7400",
    "127.0.0.1:8102",
    12,
    "/data/logs/write-proxy-1.log",
    gateway="http://127.0.0.1:8400",
)
STARTED = Started(
    "/elsewhere/quire data",
    "quire://127.0.0.1:7400/default",
    "distributedlog+sqlite:/elsewhere/quire%20data/metadata.db/default",
    10,
    (BOOKIE, WRITE_PROXY),
    1.5,
)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def shown(event: Started, capsys: pytest.CaptureFixture[str]) -> str:
    Lines().tell(event)
    return capsys.readouterr().out


def test_every_address_that_is_served_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    printed = shown(STARTED, capsys)
    for each in STARTED.services:
        assert each.address is not None
        assert each.admin is not None
        assert each.address in printed
        assert each.admin in printed
    assert "Gateway   http://127.0.0.1:8400\n" in printed
    assert "URI       quire://127.0.0.1:7400/default\n" in printed
    assert f"Direct    {STARTED.direct_uri}   past the proxies\n" in printed


def test_what_to_try_names_a_cluster_that_commands_here_do_not_find(capsys: pytest.CaptureFixture[str]) -> None:
    printed = shown(STARTED, capsys)
    assert "quire write orders --uri quire://127.0.0.1:7400/default   in another terminal\n" in printed
    assert "quire tail orders --uri quire://127.0.0.1:7400/default\n" in printed
    assert "Stop it   Ctrl-C, or quire down --data '/elsewhere/quire data'\n" in printed


def test_what_to_try_is_short_in_the_folder_of_the_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = shown(replace(STARTED, data=str(tmp_path / "quire-data")), capsys)
    assert "echo hello | quire write orders   in another terminal, in this folder\n" in printed
    assert printed.endswith("Stop it   Ctrl-C, or quire down\n")
