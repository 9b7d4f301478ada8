"""A real HDFS on loopback: a name node and a data node in one Java process, which ends with its input."""

import shutil
import subprocess
from pathlib import Path
from typing import Final, Self

_TARGET: Final = Path(__file__).parent / "java" / "hdfs" / "target"
_LOG_SHOWN_CHARACTERS: Final = 4_000


class HdfsServer:
    """HDFS with its files in `folder`, for a `with` block."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._log = folder, folder / "hdfs.log"
        self._process: subprocess.Popen[str] | None = None
        self.rpc_port = self.http_port = 0

    def __enter__(self) -> Self:
        java, class_path = shutil.which("java"), _TARGET / "classpath.txt"
        if java is None or not class_path.exists():
            raise RuntimeError(
                "the Java half of the interop tests is not built: `make interop` builds it and runs them"
            )
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        classes = f"{_TARGET / 'classes'}:{class_path.read_text().strip()}"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [java, *options, quiet, "-cp", classes, "quire.interop.Hdfs", str(self._folder / "data")],
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        ports = self._process.stdout.readline().split()
        assert len(ports) == 2, self._log.read_text()[-_LOG_SHOWN_CHARACTERS:]
        self.rpc_port, self.http_port = map(int, ports)
        return self

    def __exit__(self, *exc_info: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.communicate(timeout=20)  # Closes its input.
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate(timeout=10)

    def root(self, path: str) -> str:
        """How Quire calls a folder there."""
        return f"hdfs://127.0.0.1:{self.rpc_port}/{path}?http={self.http_port}"

    def for_spark(self, path: str) -> str:
        """How Spark's own client calls it."""
        return f"hdfs://127.0.0.1:{self.rpc_port}/{path}"
