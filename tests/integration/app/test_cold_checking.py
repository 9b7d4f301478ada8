"""`quire check` on archived streams: real bookies, files in a real folder, and an S3 server that never answers."""

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quire.app.inventory import Target, open_operations, read_stream
from quire.cli.main import app
from quire.metadata import ANY_VERSION
from quire.stream.archiving import archive_segment, archive_stream
from quire.stream.cold_moves import DropPolicy, drop_hot, restore_segments
from quire.stream.cold_nodes import ColdNodes, Placed
from quire.stream.namespace import Namespace, open_namespace
from quire.testing.local import LocalCluster, local_cluster
from quire.types import Lssn

pytestmark = pytest.mark.extended

SEGMENTS = 4


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "cluster", bookies=3) as running:
        yield running


def in_namespace(cluster: LocalCluster, work: Callable[[Namespace], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with open_namespace(cluster.uri) as namespace:
            return await work(namespace)

    return asyncio.run(run())


def checked(cluster: LocalCluster, *options: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["check", "--uri", cluster.uri, "--json", *options])
    assert done.output, done.exception
    return done.exit_code, json.loads(done.output)


def findings(cluster: LocalCluster, *options: str) -> list[tuple[str, str, str]]:
    """Kind, severity and stream of each."""
    code, told = checked(cluster, *options)
    assert code == (1 if told["findings"] else 0)
    return [(each["kind"], each["severity"], (each["stream"] or "").rpartition("/")[2]) for each in told["findings"]]


async def archived(namespace: Namespace, root: Path, *streams: str, cold: int = 2) -> list[list[Placed]]:
    """Streams of four segments, all archived, the first ones only in cold storage. Returns their chains."""
    chains = []
    for stream in streams:
        for number in range(SEGMENTS):
            async with namespace.open_writer(stream) as writer:
                await writer.append(b"record %d" % number * 20)
        await archive_stream(namespace.context, stream, f"file:{root}")
        await drop_hot(namespace.context, stream, DropPolicy(before=Lssn(cold + 1)))
        chains.append(await chain(namespace, stream))
    return chains


async def chain(namespace: Namespace, stream: str) -> list[Placed]:
    return await ColdNodes(namespace.context.store, namespace.context.paths(stream)).whole_chain()


def file_of(root: Path, placed: Placed) -> Path:
    assert placed.cold is not None
    return root / placed.cold.cold.file.name


def test_files_that_are_missing_or_not_what_was_archived_are_found(cluster: LocalCluster, tmp_path: Path) -> None:
    """Method: of each stream another kind of damage, to a segment that is only cold and to one that is hot, too."""
    root, names = tmp_path / "archive", ("missing", "short", "footer", "flipped")
    chains = in_namespace(cluster, lambda namespace: archived(namespace, root, *names))
    code, told = checked(cluster, "--thorough", "--exclusive")
    assert (code, told["findings"], told["cold_files"]) == (0, [], 4 * SEGMENTS)
    for name, placed in zip(names, chains, strict=True):
        for file in (file_of(root, placed[0]), file_of(root, placed[3])):
            data = file.read_bytes()
            file.unlink()
            if name == "short":
                file.write_bytes(data[:-1])
            elif name == "footer":
                file.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
            elif name == "flipped":
                file.write_bytes(data[:10] + bytes([data[10] ^ 1]) + data[11:])
    seen = [
        ("damaged cold file", "lost", "footer"),
        ("damaged cold file", "lost", "short"),
        ("missing cold file", "lost", "missing"),
        ("damaged cold file", "at risk", "footer"),
        ("damaged cold file", "at risk", "short"),
        ("missing cold file", "at risk", "missing"),
    ]
    assert findings(cluster) == seen
    flipped = [("damaged cold file", severity, "flipped") for severity in ("lost", "at risk")]
    assert sorted(findings(cluster, "--thorough")) == sorted([*seen, *flipped])
    shown = CliRunner().invoke(app, ["check", "--uri", cluster.uri]).output
    assert "16 cold files: 6 findings" in shown
    assert "Nothing else has its records" in shown


def test_a_gap_in_the_chain_and_an_archive_that_was_cut_off_are_found(cluster: LocalCluster, tmp_path: Path) -> None:
    """Method: delete the node of a cold segment in the middle; and all of a hot one right behind cold ones."""

    async def break_them(namespace: Namespace) -> None:
        gap, cut = await archived(namespace, tmp_path / "archive", "gap", "cut", cold=3)
        assert gap[1].cold is not None
        assert cut[2].cold is not None
        await namespace.context.store.delete(
            namespace.context.paths("gap").cold_segment(gap[1].cold.name), expected=ANY_VERSION
        )
        await namespace.context.store.delete(
            namespace.context.paths("cut").cold_segment(cut[2].cold.name), expected=ANY_VERSION
        )

    in_namespace(cluster, break_them)
    assert findings(cluster) == [("broken chain", "lost", "gap"), ("cut-off archive", "at risk", "cut")]


def test_cold_storage_that_does_not_answer_is_told_and_the_rest_is_checked(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the files of one stream are said to be on a server that takes connections, and never says a word."""
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    root = tmp_path / "archive"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        away = f"s3://bucket/log?endpoint=http://127.0.0.1:{silent.getsockname()[1]}"

        async def move_and_lose(namespace: Namespace) -> None:
            moved, lost = await archived(namespace, root, "moved", "lost")
            nodes = ColdNodes(namespace.context.store, namespace.context.paths("moved"))
            await nodes.same.know()
            for placed in moved:
                assert placed.cold is not None
                file = replace(placed.cold.cold.file, root=away)
                await nodes.rewrite(placed.cold, replace(placed.cold.cold, file=file))
            file_of(root, lost[0]).unlink()

        in_namespace(cluster, move_and_lose)
        code, told = checked(cluster, "--timeout", "4", "--exclusive")
    by_kind = {each["kind"]: each for each in told["findings"]}
    # What is left in the folder has no segment that names it any more: so it is told as well.
    assert (code, set(by_kind)) == (1, {"missing cold file", "unreachable cold storage", "left-over cold file"})
    unreachable = by_kind["unreachable cold storage"]
    assert away in unreachable["subject"]
    assert "4 in all" in unreachable["problem"]


def test_files_of_nobody_are_told_if_all_is_said_to_belong_to_these_streams(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Method: a file of a segment that is archived already, of one that is not, and of a deleted stream."""
    root = tmp_path / "archive"

    async def leave(namespace: Namespace) -> list[str]:
        (placed,) = await archived(namespace, root, "orders")
        async with namespace.open_writer("orders") as writer:
            await writer.append(b"not archived yet")
        newest = (await chain(namespace, "orders"))[-1].stored.segment
        assert placed[3].hot is not None
        left = await archive_segment(namespace.context, "orders", placed[3].hot.segment, f"file:{root}")
        await archive_segment(namespace.context, "orders", newest, f"file:{root}")
        deleted = root / left.file.name.replace("/orders/", "/deleted/")
        deleted.parent.mkdir(parents=True)
        deleted.write_bytes(b"whatever")
        (root / "notes.txt").write_text("of somebody else")
        return [left.file.name, deleted.relative_to(root).as_posix()]

    names = in_namespace(cluster, leave)
    assert findings(cluster) == []
    _, told = checked(cluster, "--exclusive")
    assert [each["kind"] for each in told["findings"]] == ["left-over cold file"] * 2
    assert all(any(name in each["problem"] for each in told["findings"]) for name in names)


async def test_segments_that_are_restored_while_the_check_reads_are_seen_where_they_are(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Method: hot segments are listed while they are cold, and cold ones read when they are hot: a purge looks so."""
    async with open_namespace(cluster.uri) as namespace, open_operations(Target(None, (cluster.uri,))) as operations:
        await archived(namespace, tmp_path / "archive", "orders")
        (opened,) = operations.namespaces
        get, restored, one_at_a_time = opened.store.get, list[Lssn](), asyncio.Lock()

        async def moving_get(path: str) -> Any:
            async with one_at_a_time:
                if not restored and "/cold/" in path:
                    restored.extend(await restore_segments(namespace.context, "orders"))
            return await get(path)

        opened.store.get = moving_get  # type: ignore[method-assign]
        facts = await read_stream(opened, "orders")
    assert restored == [2, 1]
    assert [each.segment.lssn for each in facts.segments if each.segment is not None] == [1, 2, 3, 4]
    assert [(each.cold.lssn, each.cold.is_hot) for each in facts.cold] == [(1, True), (2, True), (3, True), (4, True)]
