"""`quire archive`, when something is wrong with one of several streams."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import quire
from quire.cli.main import app
from quire.metadata import ANY_VERSION
from quire.stream.namespace import Namespace
from quire.testing import LocalCluster

pytestmark = pytest.mark.xdist_group("spark")


def archived(cluster: LocalCluster, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["archive", *arguments, "--uri", cluster.uri, "--json"])
    assert done.exit_code == code, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def write(cluster: LocalCluster, *streams: str, segments: int) -> None:
    with cluster.connect_sync() as client:
        for stream in streams:
            for _ in range(segments):
                with client.open_writer(stream) as writer:
                    writer.append(b"x")


async def damage_node(cluster: LocalCluster, stream: str) -> None:
    """One of its segments' nodes is nothing that anybody could read."""
    async with quire.connect(cluster.uri) as client:
        assert isinstance(client, Namespace)
        store, paths = client.context.store, client.context.paths(stream)
        name = (await store.children(paths.segments)).names[0]
        await store.set(paths.segment(name), b"?", expected=ANY_VERSION)


def test_one_stream_that_is_damaged_keeps_no_other_from_being_archived_and_dropped(
    spark: Any, quire_cluster: LocalCluster, tmp_path: Path
) -> None:
    """A file of `a` was cut short while its hot copy is there; then a node of `b` cannot be read."""
    root = tmp_path / "cold"
    write(quire_cluster, "a", "b", "c", segments=2)
    assert len(archived(quire_cluster, "--to", f"file:{root}")["archived"]) == 6
    bad = next(root.glob("*/a/seg-000000000001/*.parquet"))
    bad.write_bytes(bad.read_bytes()[:-20])
    asyncio.run(damage_node(quire_cluster, "b"))
    write(quire_cluster, "a", "c", segments=1)
    told = archived(quire_cluster, "--to", f"file:{root}", "--drop-hot", code=1)
    assert [(each["stream"], each["lssn"]) for each in told["archived"]] == [("a", 3), ("c", 3)]
    assert [(each["stream"], each["lssn"]) for each in told["dropped"]] == [("c", 1), ("c", 2)]
    assert [(each["stream"], each["lssn"], each["step"], each["kind"]) for each in told["failed"]] == [
        ("b", None, "archive", "DamagedMetadata"),
        ("a", None, "drop", "DamagedColdFile"),
        ("b", None, "drop", "DamagedMetadata"),
    ]
