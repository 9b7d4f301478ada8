"""A real server that speaks S3's protocol on loopback, for tests: moto's, in a process of its own."""

import atexit
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.support.servers.becoming import dying_with_us
from tests.support.servers.ports import free_port

_START_S = 90.0

KEYS = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}


class S3Server:
    """Keeps what is stored in memory, until it is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.kill)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def root(self, bucket: str, prefix: str = "") -> str:
        """The URI of cold storage in a bucket of this server, which is created."""
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{bucket}", method="PUT")):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 409:  # It is there.
                raise
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}"

    def start(self) -> None:
        """Start the server and return once it answers."""
        with (self._folder / "s3.log").open("ab") as log:
            self._process = subprocess.Popen(
                dying_with_us([sys.executable, "-m", "moto.server", "-p", str(self.port)]),
                stdout=log,
                stderr=log,
            )
        ends_s = time.monotonic() + _START_S
        while True:
            assert self._process.poll() is None, (self._folder / "s3.log").read_text()
            try:
                with urllib.request.urlopen(self.endpoint, timeout=5):
                    return
            except OSError:
                assert time.monotonic() < ends_s, "the server does not start"
                time.sleep(0.1)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
