"""Our bookie as an operator starts it: `quire bookie run`."""

import sys

from tests.support.servers.bookie_process import BookieProcess


class QuireBookie(BookieProcess):
    """One process of ours, in this interpreter's environment."""

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "quire", "bookie", "run"),
            *("--metadata", self.uri),
            *("--data", str(self.folder / "data")),
            *("--listen", f"127.0.0.1:{self.port}"),
            *("--id", self.name),
        ]

    def stop(self) -> int:
        code = super().stop()
        assert code == 0, f"bookie {self.name} ended with exit code {code}:\n{self.log_end()}"
        return code
