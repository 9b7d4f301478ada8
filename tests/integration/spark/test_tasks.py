"""Work in tasks of a real Spark: what came of each piece, and how far it is while it runs."""

from pathlib import Path
from typing import Any

import pytest

from quire.errors import NoSuchStream
from quire.spark.client_cache import Access
from quire.spark.tasks import Piece, run_tasks, try_tasks, watching_stages
from tests.support.spark.logs import FolderLog, folder_log

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with folder_log(tmp_path / "log") as log:
        yield log


def wait_for(access: Access, piece: Piece) -> Piece:
    """Give back its number, but not before the file is there that it is told to wait for."""
    import asyncio

    from tests.support.waiting import eventually

    async def is_there() -> bool:
        return not piece["file"] or Path(piece["file"]).exists()

    asyncio.run(eventually(is_there, within_s=120, what="progress was told"))
    if piece["number"] < 0:
        raise NoSuchStream(f"there is none for {piece['number']}", stream="x")
    return {"number": piece["number"]}


def test_progress_is_told_while_tasks_run(spark: Any, log: FolderLog, tmp_path: Path) -> None:
    """The last task ends only when somebody has heard that others are done: told too late it would wait for ever."""
    file, told = tmp_path / "go", list[tuple[int, int]]()

    def on_progress(done: int, total: int) -> None:
        told.append((done, total))
        if done >= 1:
            file.touch()

    pieces = [{"number": number, "file": str(file) if number == 3 else ""} for number in range(4)]
    results = run_tasks(spark, log.uri, wait_for, pieces, on_progress=on_progress)
    assert results == [{"number": number} for number in range(4)]
    assert (told[0], told[-1]) == ((0, 4), (4, 4))
    assert told == sorted(told)
    assert any(0 < done < 4 for done, _ in told)


def test_stages_of_a_query_are_told_while_they_run(spark: Any, log: FolderLog, tmp_path: Path) -> None:
    file, told = tmp_path / "go", list[tuple[int, int]]()

    def on_progress(done: int, total: int) -> None:
        told.append((done, total))
        file.touch()

    with watching_stages(spark, on_progress):
        try_tasks(spark, log.uri, wait_for, [{"number": 1, "file": str(file)}])
    assert told
    assert {total for _, total in told} == {1}


def test_an_error_of_ours_is_a_result_and_the_others_are_there(spark: Any, log: FolderLog) -> None:
    pieces = [{"number": number, "file": ""} for number in (1, -1, 2)]
    first, failed, last = try_tasks(spark, log.uri, wait_for, pieces)
    assert (first, last) == ({"number": 1}, {"number": 2})
    assert isinstance(failed, NoSuchStream)
    assert (str(failed), failed.facts) == ("there is none for -1", {"stream": "x"})
    with pytest.raises(NoSuchStream):
        run_tasks(spark, log.uri, wait_for, pieces)
