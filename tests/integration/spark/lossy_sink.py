"""The sink as it would be if things went wrong right after they went well: `format("quire_lossy")`.

Its option `loss` says what: `reply` raises after a commit that succeeded, `helper` ends the process that committed.
Each happens once, for the batch of option `lossBatch`: a file in `lossFolder` remembers.
"""

import os
from pathlib import Path

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quire.spark.sink import QuireStreamWriter, stream_writer
from quire.spark.source import QuireDataSource


class LossyDataSource(QuireDataSource):
    @classmethod
    def name(cls) -> str:
        return "quire_lossy"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        sinks = {name: value for name, value in self.options.items() if name not in ("loss", "lossbatch", "lossfolder")}
        return LossyWriter(stream_writer(sinks, schema, overwrite), dict(self.options))


class LossyWriter(QuireStreamWriter):
    def __init__(self, writer: QuireStreamWriter, options: dict[str, str]) -> None:
        super().__init__(writer._options, writer._txid)
        self._loss, self._batch = options["loss"], int(options["lossbatch"])
        self._done = Path(options["lossfolder"]) / "lost"

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        super().commit(messages, batchId)
        if batchId == self._batch and not self._done.exists():
            self._done.touch()
            if self._loss == "helper":
                os._exit(9)
            raise ConnectionResetError("the reply to a commit was lost")
