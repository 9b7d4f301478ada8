"""`quire metadata` as a user runs it: in a process of their own, on every driver."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.quire_command import run_quire

from quire.codec.registration import BookieServiceInfo, Endpoint
from quire.metadata import ANY_VERSION, open_cluster, open_store, parse_uri
from quire.metadata.cluster import ClusterPaths
from quire.types import BookieId, EntryId, Fragment, LedgerMetadata, Quorum


def quire(*args: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    done = run_quire(*args)
    printed, errors = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == code, printed + errors
    assert "Traceback" not in errors
    return subprocess.CompletedProcess(args, code, printed, errors)


def quire_json(*args: str, code: int = 0) -> Any:
    return json.loads(quire(*args, "--json", code=code).stdout)


URIS = {
    "sqlite": "hierarchical",
    "zk": "hierarchical",
    "zk+flat": "flat",
    "zk+longhierarchical": "longhierarchical",
    "etcd": "etcd",
}


@pytest.fixture(params=list(URIS))
def scheme(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def uri(scheme: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if scheme == "sqlite":
        return f"sqlite:{tmp_path}/metadata.db"
    port = request.getfixturevalue("etcd" if scheme == "etcd" else "zookeeper").port
    return f"{scheme}://127.0.0.1:{port}/{uuid4().hex}/ledgers"


def test_init_show_and_check_on_every_driver(uri: str, scheme: str) -> None:
    made = quire_json("metadata", "init", uri)
    assert made["layout"] == URIS[scheme]
    asyncio.run(_fill(uri))
    shown = quire_json("metadata", "show", uri)
    assert shown["layout"] == made["layout"]
    assert shown["instance_id"] == made["instance_id"]
    assert shown["ledgers"] == 3
    assert shown["bookies"] == []
    text = quire("metadata", "show", uri).stdout
    assert made["instance_id"] in text
    assert quire("metadata", "check", uri).stdout == "4 nodes checked, no problems\n"

    refused = quire("metadata", "init", uri, code=1)
    assert refused.stdout == ""
    assert "nothing was changed" in refused.stderr
    assert "hint:" in refused.stderr
    assert quire_json("metadata", "show", uri) == shown


def test_init_completes_what_pulsars_set_up_has_begun(uri: str, scheme: str) -> None:
    """It writes an instance id, and nothing else."""
    instance_id = str(uuid4())
    asyncio.run(_begin(uri, instance_id))
    failed = quire("metadata", "show", uri, code=1)
    assert "has no layout" in failed.stderr
    assert f"Complete it with `quire metadata init '{uri}'`" in failed.stderr
    made = quire_json("metadata", "init", uri)
    assert made["layout"] == URIS[scheme]
    assert made["instance_id"] == instance_id
    asyncio.run(_fill(uri))
    shown = quire_json("metadata", "show", uri)
    assert (shown["instance_id"], shown["ledgers"]) == (instance_id, 3)
    assert "nothing was changed" in quire("metadata", "init", uri, code=1).stderr
    assert quire_json("metadata", "show", uri) == shown


async def _begin(uri: str, instance_id: str) -> None:
    async with open_store(uri) as store:
        path = ClusterPaths.of(parse_uri(uri)).instance_id
        await store.create(path, instance_id.encode(), parents=True)


async def _fill(uri: str) -> None:
    async with open_cluster(uri) as cluster:
        for _ in range(3):
            await cluster.ledgers.create(
                LedgerMetadata(Quorum(1, 1, 1), (Fragment(EntryId(0), (BookieId("bk1:3181"),)),))
            )


def test_show_lists_bookies_and_check_finds_damage(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path}/metadata.db"
    quire("metadata", "init", uri)

    async def with_a_live_bookie() -> tuple[Any, Any]:
        info = BookieServiceInfo((Endpoint("bookie", "10.0.0.1", 3181, "bookie-rpc"),))
        async with open_cluster(uri) as cluster, cluster.bookies.register(BookieId("bk1:3181"), info):
            ledger = await cluster.ledgers.create(
                LedgerMetadata(Quorum(1, 1, 1), (Fragment(EntryId(0), (BookieId("bk1:3181"),)),))
            )
            await cluster.store.set(cluster.ledgers.path(ledger.ledger_id), b"?", expected=ANY_VERSION)
            shown = await asyncio.to_thread(quire_json, "metadata", "show", uri)
            checked = await asyncio.to_thread(lambda: quire_json("metadata", "check", uri, code=1))
            return shown, checked

    shown, checked = asyncio.run(with_a_live_bookie())
    (bookie,) = shown["bookies"]
    assert (bookie["id"], bookie["state"]) == ("bk1:3181", "writable")
    assert bookie["endpoints"][0]["host"] == "10.0.0.1"
    (problem,) = checked["problems"]
    assert problem["path"] == "/ledgers/00/0000/L0000"
    assert problem["hint"]
    text = quire("metadata", "check", uri, code=1).stdout
    assert "/ledgers/00/0000/L0000" in text
    assert "1 problem" in text


BAD = {
    "nonsense": ("no scheme", "zk+hierarchical://"),
    "zk://127.0.0.1:1/ledgers": ("127.0.0.1:1", "servers"),
    "etcd://127.0.0.1:1/ledgers": ("127.0.0.1:1", "servers"),
    "consul://h/ledgers": ("consul", "Known schemes"),
    "sqlite:absent.db": ("absent.db", "init"),
    "zk+ms://h/ledgers": ("ms", "hierarchical"),
}


@pytest.mark.parametrize("uri", BAD)
@pytest.mark.parametrize("command", ["show", "check"])
def test_bad_input_is_one_sentence_and_a_hint(
    uri: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said, hint = BAD[uri]
    failed = quire("metadata", command, uri, "--timeout", "1", code=1)
    assert failed.stdout == ""
    error_line, hint_line = failed.stderr.splitlines()
    assert error_line.startswith("error: ")
    assert said in error_line
    assert hint_line.startswith("hint: ")
    assert hint in hint_line
    as_json = quire_json("metadata", command, uri, "--timeout", "1", code=1)
    assert set(as_json["error"]) == {"kind", "message", "hint", "notes", "facts", "retryable", "outcome"}
    assert list(tmp_path.iterdir()) == [], "looking at nothing leaves nothing behind"


def test_the_uri_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_METADATA", f"sqlite:{tmp_path}/metadata.db")
    quire("metadata", "init")
    assert quire_json("metadata", "show")["layout"] == "hierarchical"


def test_help_has_examples_and_the_version_is_told() -> None:
    for command in ("init", "show", "check"):
        assert "Example" in quire("metadata", command, "--help").stdout
    assert quire("--version").stdout.startswith("quire 0.")
