"""BookKeeper's own command line, `bookkeeper shell`, one process for each command as an operator would start it."""

import asyncio
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers.jvm import java_command

_ENDS_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class ShellRun:
    """What a command left: its exit code, and everything it printed or logged."""

    code: int
    text: str

    def ledgers(self) -> list[int]:
        """The ledger ids it named. Release 4.17 prints `ledgerID: 7`, 4.18 logs the attribute `ledgerId=7`."""
        return [int(number) for number in re.findall(r"ledgerI[dD][:=] ?([0-9]+)", self.text)]

    def bookies(self) -> list[tuple[str, str, int]]:
        """The bookies it named: id, IP address and port."""
        found = re.findall(r"BookieID:(\S+), IP:([0-9.]+|UNKNOWN), Port:([0-9]+)", self.text)
        return sorted((bookie, ip, int(port)) for bookie, ip, port in found)

    def entries(self) -> list[int]:
        """The entry ids it named, from 4.18 on as the attribute `entryId=7`."""
        return [int(number) for number in re.findall(r"entryI[dD][:=] ?([0-9]+)", self.text)]

    def dumped_bytes(self) -> str:
        """All bytes of its hex dumps in one line, whatever stands between their lines."""
        rows = re.findall(r"^\|[0-9a-f]{8}\| ((?:[0-9a-f]{2} )+)", self.text, re.MULTILINE)
        return "".join(rows).strip()


class BookieShell:
    """Runs commands with a configuration file that names a metadata service, and only what is given besides."""

    def __init__(self, folder: Path, *, ends_within_s: float = _ENDS_WITHIN_S) -> None:
        self._folder, self._ends_within_s = folder, ends_within_s

    async def run(self, uri: str, *words: str, **settings: str) -> ShellRun:
        configuration = self._folder / "bk_server.conf"
        lines = [f"{name}={value}" for name, value in {"metadataServiceUri": uri, **settings}.items()]
        configuration.write_text("\n".join(lines) + "\n")
        process = await asyncio.create_subprocess_exec(
            *java_command("org.apache.bookkeeper.bookie.BookieShell", "-conf", str(configuration), *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(self._ends_within_s):
                printed, _ = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        assert process.returncode is not None
        return ShellRun(process.returncode, printed.decode(errors="replace"))
