"""The forecast of `quire capacity` against a load that is known, on real bookies."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from quire.app.capacity import survey
from quire.app.inventory import Target, open_operations
from quire.cli.main import app
from quire.protocol.capacity import DAY_MS, Capacity, forecast
from quire.runtime import AsyncioClock, AsyncioNetwork, OsDisk, Runtime, SystemRng
from quire.stream.namespace import Namespace, open_namespace
from quire.testing.local import LocalCluster, local_cluster

RECORD = bytes(range(250)) * 4
RECORDS_A_DAY = 300


class Calendar(AsyncioClock):
    """A clock whose days pass when somebody says so."""

    def __init__(self) -> None:
        self.now_ms = super().wall_ms()

    def wall_ms(self) -> int:
        return self.now_ms


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "cluster") as running:
        yield running


@asynccontextmanager
async def on_calendar(cluster: LocalCluster) -> AsyncIterator[tuple[Calendar, Runtime, Namespace]]:
    calendar = Calendar()
    disk = OsDisk()
    runtime = Runtime(clock=calendar, disk=disk, network=AsyncioNetwork(), rng=SystemRng())
    async with open_namespace(cluster.uri, runtime=runtime) as namespace:
        yield calendar, runtime, namespace
    await disk.aclose()


async def write_days(calendar: Calendar, namespace: Namespace, days: int) -> None:
    for _ in range(days):
        async with namespace.open_writer("orders") as writer:
            for _ in range(6):
                await writer.append_many([RECORD] * (RECORDS_A_DAY // 6))
                calendar.now_ms += DAY_MS // 6


async def look(cluster: LocalCluster, runtime: Runtime) -> Capacity:
    async with open_operations(Target(None, (cluster.uri,)), runtime=runtime) as operations:
        found = await survey(operations)
    assert found.problems == ()
    return found.capacity


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.log"))


async def test_a_known_load_is_forecast_within_a_tenth(cluster: LocalCluster) -> None:
    """Method: write as much on each of four days, ask for the forecast, write on for three more, and compare what the
    disks of the bookies really hold, all their entry logs, with what was foretold."""
    async with on_calendar(cluster) as (calendar, runtime, namespace):
        await write_days(calendar, namespace, 4)
        foretold = forecast(await look(cluster, runtime))
        await write_days(calendar, namespace, 3)
        later = forecast(await look(cluster, runtime))
    (owner,) = foretold.owners
    known = RECORDS_A_DAY * len(RECORD) * 3
    assert owner.growth_bytes_per_day == pytest.approx(known, rel=0.1)
    assert later.owners[0].stored_bytes == pytest.approx(owner.stored_bytes + 3 * owner.growth_bytes_per_day, rel=0.1)
    for bookie in cluster.bookies:
        cluster.stop_bookie(bookie.number)  # And with it everything is in entry logs.
        held = on_disk(cluster.folder / bookie.name)
        mine = next(each for each in foretold.bookies if each.bookie == bookie.name)
        assert held == pytest.approx(mine.stored_bytes + 3 * mine.growth_bytes_per_day, rel=0.1)


async def test_a_segment_in_progress_counts_with_what_it_has_by_now(cluster: LocalCluster) -> None:
    async with on_calendar(cluster) as (calendar, runtime, namespace):
        async with namespace.open_writer("orders") as writer:
            await writer.append_many([RECORD] * RECORDS_A_DAY)
            await writer.append(b"last")
            calendar.now_ms += DAY_MS
            (owner,) = forecast(await look(cluster, runtime)).owners
            await writer.append(b"its writer was not disturbed")
        assert owner.growth_bytes_per_day == pytest.approx(RECORDS_A_DAY * len(RECORD) * 3, rel=0.1)


def test_the_command_shows_bookies_streams_and_a_picture(cluster: LocalCluster, tmp_path: Path) -> None:
    with cluster.connect_sync() as client, client.open_writer("orders") as writer:
        writer.append_many([RECORD] * RECORDS_A_DAY)
    picture = tmp_path / "room.svg"
    options = ["capacity", "--uri", cluster.uri]
    shown = CliRunner().invoke(app, [*options, "--streams", "--plot", str(picture)])
    assert shown.exit_code == 0, shown.output
    assert "bookie-3" in shown.output
    assert f"{cluster.uri}/orders" in shown.output
    assert "When the first disk is full cannot be said yet" in shown.output, "it began a moment ago"
    assert " full in " not in shown.output.replace("growth a day  full in", "")
    assert "<svg" in picture.read_text()
    assert "bookie-3" in picture.read_text(), "each bookie has a line, and a name"
    as_png = tmp_path / "room.png"
    shown = CliRunner().invoke(app, [*options, "--plot", str(as_png)])
    assert shown.exit_code == 0, shown.output
    pixels = imread(as_png)
    assert pixels.shape[0] > 300
    assert pixels.shape[1] > 500
    assert len({tuple(pixel) for pixel in pixels[::3].reshape(-1, pixels.shape[2])}) > 3, "lines of several colours"
    told = CliRunner().invoke(
        app,
        [*options, "--json", "--quorum", "3/2/2", "--retention", "7d", "--add-bookies", "1", "--lose", "bookie-1"],
    )
    assert told.exit_code == 0, told.output
    found = json.loads(told.output)
    assert [each["bookie"] for each in found["bookies"]] == ["bookie-2", "bookie-3", "new-1"]
    assert found["namespaces"][0]["payload_bytes"] == pytest.approx(RECORDS_A_DAY * len(RECORD), rel=0.1)
    assert found["streams"][0]["kept_days"] == 7


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--quorum", "3/2"], "no quorums"),
        (["--plot", "room.jpeg"], "is no name of a picture"),
        (["--plot", "no/such/folder/room.png"], "cannot be written"),
        (["--retention", "soon"], "no time"),
        (["--uri", "quire://127.0.0.1:7400/ns"], "does not name a namespace"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_sentence(options: list[str], complaint: str) -> None:
    done = CliRunner().invoke(app, ["capacity", *options, "--json"])
    assert done.exit_code == 1
    assert complaint in json.loads(done.output)["error"]["message"]
