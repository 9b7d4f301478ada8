"""With what a session is started."""

import importlib.util
import subprocess

import pytest

from quire.errors import MissingExtra, NotRunning
from quire.spark.session import check_installed, quick_python, settings_for


def test_a_session_on_this_machine_stays_on_it() -> None:
    assert settings_for("local[2]", {})["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in settings_for("spark://master:7077", {})


def test_a_server_of_spark_connect_keeps_its_settings() -> None:
    found = settings_for("sc://host:15002", {"spark.executor.memory": "4g", "spark.sql.shuffle.partitions": 2})
    assert all(name.startswith("spark.sql.") for name in found)
    assert found["spark.sql.shuffle.partitions"] == "2"


def test_the_user_has_the_last_word() -> None:
    found = settings_for("local", {"spark.ui.enabled": True, "spark.driver.bindAddress": "0.0.0.0"})
    assert (found["spark.ui.enabled"], found["spark.driver.bindAddress"]) == ("true", "0.0.0.0")


def test_the_quick_python_leaves_zip_files_off_the_path() -> None:
    path = "/somewhere/pyspark.zip:/kept:/somewhere/py4j-src.zip"
    code = "import sys; print([each for each in sys.path if 'somewhere' in each or each == '/kept'])"
    done = subprocess.run(
        [quick_python(), "-c", code], env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "['/kept']"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(NotRunning, match="/nowhere/bin/java"):
        check_installed()
    check_installed("sc://host:15002")  # Java is where the server is.
    present = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "grpc_status" else present(name))
    with pytest.raises(MissingExtra, match="grpc_status") as caught:
        check_installed("sc://host:15002")
    assert "pyspark[connect]" in caught.value.hint
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pyspark") as caught:
        check_installed()
    assert "quirelog[spark]" in caught.value.hint
