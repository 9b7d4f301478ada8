"""What a program waits for between `import quire` and its first record that is on disk."""

import subprocess
import sys
from pathlib import Path

# Each of these takes longer to load than anything else on the way, and is for later, or for others: protobuf for
# version 3 of the wire protocol and for metadata that others wrote, HTTP for bookies with an admin page, gRPC for
# proxies, the rest for commands, clusters, cold storage and the pipeline.
HEAVY = {
    "boto3",
    "difflib",
    "email",
    "fsspec",
    "google.protobuf",
    "grpc",
    "h2",
    "http",
    "importlib.metadata",
    "kazoo",
    "lz4",
    "multiprocessing",
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic",
    "pyspark",
    "quire.app",
    "quire.bookie.admin",
    "quire.bookie.requests_v3",
    "quire.cli",
    "quire.codec.messages",
    "quire.codec.pb",
    "quire.codec.wire.v3",
    "quire.metadata.drivers.etcd",
    "quire.metadata.drivers.zookeeper",
    "quire.metadata.underreplication",
    "quire.proxy.client.client",
    "quire.replication",
    "quire.rpc.serving.grpc_channel",
    "quire.runtime.http_server",
    "quire.spark",
    "quire.sync",
    "quire.testing",
    "rich",
    "starlette",
    "structlog",
    "typer",
    "urllib.request",
    "uvicorn",
    "uvloop",
    "xml",
}

PROGRAM = """
import asyncio, sys
import quire
async def main():
    async with quire.connect(sys.argv[1]) as client, client.open_writer("start") as writer:
        await writer.append(b"first")
        print(*sys.modules, sep="\\n")
asyncio.run(main())
"""


def loaded_at_the_first_append(folder: Path) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"file:{folder}"], check=True, capture_output=True, text=True, timeout=60
    )
    return set(done.stdout.split())


def test_the_first_append_waits_for_nothing_that_is_heavy(tmp_path: Path) -> None:
    """In a new folder: everything that is loaded when the record is on disk, by name."""
    loaded = loaded_at_the_first_append(tmp_path / "log")
    assert {"quire.embedded.log", "quire.bookie.bookie", "quire.stream.writer"} <= loaded
    assert loaded & HEAVY == set()


def test_what_is_heavy_has_these_names() -> None:
    """A module that was renamed would be looked for in vain."""
    program = "import sys, importlib.util; print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"
    ours = sorted(name for name in HEAVY if name.startswith("quire."))
    found = subprocess.run([sys.executable, "-c", program, *ours], check=True, capture_output=True, text=True)
    assert found.stdout.split() == []
