"""`python -m benchmarks spark` runs, on little: what it measures here says nothing."""

import json
from typing import Any

import pytest
from benchmarks.__main__ import app
from typer.testing import CliRunner

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


def test_everything_is_measured_side_by_side(spark: Any) -> None:
    sizes = ["--records", "2000", "--record-bytes", "100", "--segments", "2", "--rounds", "1"]
    done = CliRunner().invoke(app, ["spark", *sizes, "--rate", "0", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [each["what"] for each in found["rates"]] == ["rows alone", "sink", "source", "Parquet", "archive"]
    assert all(each["records_per_s"] > 0 for each in found["rates"])
    assert all(each["cpu_us_per_record"] > 0 for each in found["rates"])
    assert found["latency"] is None
    assert spark.range(3).count() == 3, "a session that was there stays"
