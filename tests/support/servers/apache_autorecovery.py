"""Apache's own autorecovery, auditor and replication worker in one small JVM, from the jars of `make interop`."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.becoming import dying_with_us
from tests.support.servers.bookie_process import SESSION_MS
from tests.support.servers.jvm import java_command
from tests.support.servers.ports import free_port


@contextmanager
def apache_autorecovery(folder: Path, uri: str, **settings: object) -> Iterator[Path]:
    """Runs for the block. Yields its log."""
    folder.mkdir(parents=True, exist_ok=True)
    configuration, log = folder / "autorecovery.conf", folder / "autorecovery.log"
    lines = {
        "metadataServiceUri": uri,
        "zkTimeout": SESSION_MS,
        "bookieId": "apache-autorecovery",
        "bookiePort": free_port(),
        "advertisedAddress": "127.0.0.1",
        "listeningInterface": "lo",
        "allowLoopback": "true",
        "httpServerEnabled": "false",
        "enableStatistics": "false",
        "rwRereplicateBackoffMs": 500,
        **settings,
    }
    configuration.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    command = java_command("org.apache.bookkeeper.replication.AutoRecoveryMain", "-c", str(configuration), heap_mb=256)
    with log.open("ab") as output:
        process = subprocess.Popen(
            dying_with_us(command), cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield log
    finally:
        process.kill()
        process.wait(10)
